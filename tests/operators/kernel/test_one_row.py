"""Several aggregates that go by the same column give values of one row: against plain Python, over parts, epochs and windows."""

from collections import defaultdict
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.aggregates.aggregation import Aggregation
from floodplain.operators.aggregates.running import RunningAggregate
from floodplain.operators.windows.aggregate import WindowAggregate
from floodplain.testing.process_kit import ProcessKit
from tests.operators.aggregates.test_functions import aggregated
from tests.operators.windows.window_model import at, script

BYS = ["i", "d", "s"]
VALUES = ["s", "d", "f", "b", "m", "t", "day", "raw", "l", "i"]


def alike(seed: int, count: int = 600) -> pa.Table:
    """Few different values, so that rows are alike in some columns and not in others; nulls and the edges of the types too."""
    rng = np.random.default_rng(seed)

    def some(values: list, type_: pa.DataType) -> pa.Array:
        return pa.array([values[i] for i in rng.integers(0, len(values), count)], type_)

    return pa.table(
        {
            "g": rng.integers(0, 9, count),
            "i": some([None, -3, 5, 7], pa.int32()),
            "l": some([None, -(2**63), 0, 2**63 - 1], pa.int64()),
            "d": some([None, float("nan"), float("-inf"), -0.0, 0.0, 1.5], pa.float64()),
            "f": some([None, float("nan"), -0.5, 0.5], pa.float32()),
            "s": some([None, "", "Z", "a", "é"], pa.string()),
            "b": some([None, False, True], pa.bool_()),
            "m": some([None, Decimal("-1.10"), Decimal("2.05"), Decimal("10.00")], pa.decimal128(7, 2)),
            "t": some([None, at(0), at(1)], pa.timestamp("us", "UTC")),
            "day": some([None, date(1969, 12, 31), date(2026, 1, 1)], pa.date32()),
            "raw": some([None, b"", b"\x7f", b"\x80"], pa.binary()),
            "n": some([None, {"x": 1}, {"x": 2}], pa.struct([("x", pa.int64())])),
            "w": some([None, False, True, True], pa.bool_()),
        }
    )


def rank(value) -> tuple:
    """Where a value stands among others: null first, NaN last."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


def of_best(rows: list[dict], values: list[str], by: str, greatest: bool, where: str | None = None) -> tuple:
    """The values of the best row, in plain Python."""
    there = [row for row in rows if row[by] is not None and (where is None or row[where])]
    if not there:
        return (None,) * len(values)
    best = (max if greatest else min)(there, key=lambda row: [rank(row[name]) for name in (by, *values)])
    return tuple(best[name] for name in values)


def same(found: tuple, expected: tuple) -> bool:
    return [rank(value) for value in found] == [rank(value) for value in expected]


@pytest.mark.parametrize("seed", range(8))
def test_all_values_are_those_of_the_best_row(seed):
    """For any types, in any order of the aggregates, however the rows are split; four rows at once by two columns."""
    rng = np.random.default_rng(seed)
    rows, by = alike(seed), BYS[seed % 3]
    wanted = {
        ("max", None): [str(name) for name in rng.permutation(VALUES)[:5]],
        ("min", None): [str(name) for name in rng.permutation(VALUES)[:4]],
        ("max", "w"): [str(name) for name in rng.permutation(VALUES)[:3]],
        ("min", "w"): [str(name) for name in rng.permutation(VALUES)[:1]],
    }
    named = {}
    for place in range(5):  # those that belong together stand apart
        for (kind, where), values in wanted.items():
            if place < len(values):
                make = fp.max_by if kind == "max" else fp.min_by
                named[f"{kind}_{where}_{place}"] = make(values[place], by, where=where)
    groups = defaultdict(list)
    for row in rows.to_pylist():
        groups[row["g"]].append(row)
    assert len(Aggregation(named).bind(rows.schema, None).parts) == 4
    for parts in (1, 4, 40):
        found = aggregated(rows, named, parts, seed)
        assert found.keys() == groups.keys()
        for group, row in found.items():
            assert list(row) == list(named)
            for (kind, where), values in wanted.items():
                got = tuple(row[f"{kind}_{where}_{place}"] for place in range(len(values)))
                expected = of_best(groups[group], values, by, kind == "max", where)
                assert same(got, expected), (group, kind, where, values, got, expected)


def test_nested_values_are_of_that_row_too():
    rows = alike(3)
    named = {"n": fp.max_by("n", "i"), "s": fp.max_by("s", "i"), "l": fp.max_by("l", "i")}
    found = {parts: aggregated(rows, named, parts, parts) for parts in (1, 7)}
    assert found[1] == found[7]
    there = {(row["g"], str(row["n"]), row["s"], row["l"]) for row in rows.to_pylist() if row["i"] == 7}
    assert {(group, str(row["n"]), row["s"], row["l"]) for group, row in found[1].items()} <= there


def test_which_are_computed_as_one():
    """Those alike in by, where and direction; ``last`` is a ``max_by`` of the event time."""
    named = {
        "a": fp.max_by("s", "i"),
        "n": fp.count(),
        "b": fp.min_by("s", "i"),
        "c": fp.max_by("l", "i", where="w"),
        "d": fp.max_by("l", "i"),
        "e": fp.last("s"),
        "f": fp.max_by("b", "t"),
        "h": fp.first("b"),
        "k": fp.last("d", by="i"),
    }
    rows = alike(0, 1).schema
    aggregation = Aggregation(named).bind(rows, "t")
    assert [part.names for part in aggregation.parts] == [("a", "d", "k"), ("n",), ("b",), ("c",), ("e", "f"), ("h",)]
    assert [field.name for field in aggregation.output] == list(named)
    kept = ["a_0", "d_0", "k_0", "a_1", "n", "b_0", "b_1", "c_0", "c_1", "e_0", "f_0", "e_1", "h_0", "h_1"]
    assert [field.name for field in aggregation.partial] == kept
    assert [field.type for field in aggregation.partial][:4] == [rows.field(name).type for name in ("s", "l", "d", "i")]
    with pytest.raises(fp.SchemaMismatch, match="aggregate z: rows can be ordered by a type with an order"):
        Aggregation(named | {"y": fp.max_by("s", "i"), "z": fp.max_by("s", "n")}).bind(rows, "t")


def test_each_partial_has_a_column_of_its_own():
    named = {"a": fp.max_by("s", "i"), "b": fp.max_by("l", "i"), "a_0": fp.count(), "b_0": fp.avg("i"), "a_1": fp.sum("i")}
    names = [field.name for field in Aggregation(named).bind(alike(0, 1).schema, None).partial]
    assert names == ["a_0", "b_0", "a_1", "a_0_2", "b_0_0", "b_0_1", "a_1_2"]
    kit = fp.PipelineKit(lambda stream: stream.key_by("g").agg(**named).write("memory"), rows="g long, i int, l long, s string")
    kit.epoch([{"g": 1, "i": 2, "l": 3, "s": "x"}, {"g": 1, "i": 2, "l": 3, "s": "w"}])
    (row,) = kit.epoch([{"g": 1, "i": 1, "l": 4, "s": "z"}])["output"]
    assert row == {"g": 1, "a": "x", "b": 3, "a_0": 3, "b_0": 5 / 3, "a_1": 5}


ROWS = "k string, ts timestamp, v long, x long, y string"
BEST = {
    "x": fp.max_by("x", "v"),
    "n": fp.count(),
    "y": fp.max_by("y", "v"),
    "low_y": fp.min_by("y", "v"),
    "low_x": fp.min_by("x", "v"),
}
WINDOWS = {
    "tumbling": (fp.tumbling("10 seconds"), {}),
    "panes": (fp.sliding("10 seconds", "5 seconds"), {}),
    "sliding, retracting": (fp.sliding("10 seconds", "5 seconds"), {"lateness": "15 seconds", "firing": "retracting"}),
    "sessions": (fp.session("3 seconds"), {"lateness": "15 seconds", "firing": "retracting"}),
    "running": (None, {}),
}


def tied(rows: list[tuple], seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    xs, ys = rng.choice([None, 0, 1, 2], len(rows)), rng.choice([None, "a", "b", "c"], len(rows))
    return [
        {"k": key, "ts": at(ms), "v": None if value is None else value % 3, "x": x, "y": y}
        for (key, ms, value), x, y in zip(rows, xs, ys, strict=True)
    ]


def keep(last: dict, output: list[dict]) -> None:
    """The last result of each window; only emitted rows may be retracted."""
    for row in output:
        place = row["k"], row.get("window_start"), row.get("window_end")
        if row.pop("weight", 1) < 0:
            assert last.pop(place) == row
        else:
            last[place] = row


@pytest.mark.parametrize("windows", WINDOWS)
def test_windows_give_the_best_row_of_their_rows(windows):
    """Over epochs, restarts and slots. After all retractions, the result is that of the rows in the window."""
    kind, options = WINDOWS[windows]

    def kit_for(partial):
        def build(stream):
            keyed = stream.watermark("ts", "0 seconds").key_by("k")
            windowed = keyed if kind is None else keyed.window(kind, **options)
            return windowed.agg(partial=partial, **BEST).write("memory")

        return fp.PipelineKit(build, rows=ROWS, slots=2)

    kits, given, found = [kit_for(False), kit_for(True)], defaultdict(list), [{}, {}]
    for number, (rows, wm, now) in enumerate(script(4, epochs=6, rows=80)):
        fresh = tied(rows, number)
        for row in fresh:
            given[row["k"]].append(row)
        for kit, last in zip(kits, found, strict=True):
            if number == 3:
                kit.restart()
                kit.rescale(3)
            keep(last, kit.epoch(fresh, watermark_ms=wm, now_ms=now)["output"])
    assert found[0] == found[1] and len(found[0]) > 3
    checked = 0
    for (key, start, end), row in found[0].items():
        inside = [each for each in given[key] if start is None or start <= each["ts"] < end]
        if len(inside) > row["n"]:
            continue  # some came too late
        checked += 1
        assert (row["x"], row["y"]) == of_best(inside, ["x", "y"], "v", True)
        assert (row["low_y"], row["low_x"]) == of_best(inside, ["y", "x"], "v", False)
    assert checked > 3


X, Y, N = {"x": fp.max_by("x", "v")}, {"y": fp.max_by("y", "v")}, {"n": fp.count()}


@pytest.mark.parametrize(
    ("then", "refused"),
    [
        (X | Y | N, None),
        (X, None),
        (N | X | Y, None),
        (Y | X, r"y_0: .*not y_1"),
        (Y, "state y_0: table kit has it, but not y_1, without which it is meaningless"),
    ],
)
def test_a_changed_pipeline_goes_on_or_is_refused(tmp_path, then, refused):
    """Where it would have the values of a row and not what they go by."""

    def kit(aggregates):
        return ProcessKit(RunningAggregate(aggregates), rows=ROWS, keys=["k"], event_time="ts", location=str(tmp_path))

    row = {"k": "a", "ts": at(0), "v": 1, "x": 5, "y": "b"}
    kit(X | Y).epoch([row])
    if refused is not None:
        with pytest.raises(fp.SchemaMismatch, match=refused):
            kit(then)
        return
    (found,) = kit(then).epoch([row | {"x": 4, "y": "c"}])
    assert found == {"k": "a", "x": 5, **({"y": "b"} if "y" in then else {}), **({"n": 1} if "n" in then else {})}


def test_what_is_kept_of_windows_cannot_change(tmp_path):
    def kit(aggregates):
        process = WindowAggregate(fp.tumbling("10 seconds"), aggregates)
        return ProcessKit(process, rows=ROWS, keys=["k"], event_time="ts", location=str(tmp_path))

    kit(X | Y)
    for changed in (X, Y, Y | X):
        with pytest.raises(
            fp.SchemaMismatch, match=r"column windows is .*struct<_start: int64, x_0: int64, y_0: string, x_1: int64>"
        ):
            kit(changed)
