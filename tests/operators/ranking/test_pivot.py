"""Pivots against a loop in Python."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.testing.pipeline_kit import PipelineKit, survives_every_crash
from tests.operators.shaken import COLUMNS, bag, cell, events, run, script

PAGES = ["a", "b", "zz"]


def last(stream):
    timed = stream.watermark("at", "1 second").key_by("user")
    return both(timed, "price", "last")


def both(timed, value, repeats):
    weighed = timed.pivot("page", PAGES, value, repeats=repeats, mode="retract", name="weighed").write("memory", name="weighed")
    return timed.pivot("page", PAGES, value, repeats=repeats).write("memory").also(weighed)


def folding(repeats):
    return lambda stream: both(stream.key_by("user"), "seq", repeats)


def naive(rows, value, repeats):
    found = {}
    for row in rows:
        if row[value] is not None and row["page"] in PAGES:
            found.setdefault(row["user"], {}).setdefault(row["page"], []).append(row)
    fold = {
        "last": lambda rows: max(rows, key=lambda row: (row["at"], cell(row[value])))[value],
        "sum": lambda rows: sum(row[value] for row in rows),
        "min": lambda rows: min(row[value] for row in rows),
        "max": lambda rows: max(row[value] for row in rows),
    }[repeats]
    return [
        {"user": user, **{page: fold(cells[page]) if page in cells else None for page in PAGES}} for user, cells in found.items()
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("repeats", ["last", "sum", "min", "max"])
def test_a_row_per_key(repeats, seed):
    given = events(seed)
    build, value = (last, "price") if repeats == "last" else (folding(repeats), "seq")
    for shaken in (None, 1):
        seen, now, changes = [], {}, []
        for epoch, out in zip(given, run(build, given, shaken=shaken), strict=True):
            seen += epoch.rows
            for row in out["output"]:
                assert bag([row]) != bag([now.get(row["user"], {})]), "given out though nothing has changed"
                now[row["user"]] = row
            changes += out["weighed"]
            assert bag(list(now.values())) == bag(naive(seen, value, repeats))
            kind = pa.float64() if repeats == "last" else pa.int64() if repeats == "sum" else pa.int32()
            schema = pa.schema({"user": pa.string(), **dict.fromkeys(PAGES, kind), "weight": pa.int64()})
            assert bag(fold_changes(pa.Table.from_pylist(changes, schema)).to_pylist()) == bag(naive(seen, value, repeats))


def test_columns_are_named_and_typed():
    def build(stream):
        return stream.key_by("user").pivot("seq", {1: "one", 2: "two"}, "price", repeats="sum").write("memory")

    kit = PipelineKit(build, rows=COLUMNS)
    assert kit.schemas == {"output": pa.schema({"user": pa.string(), "one": pa.float64(), "two": pa.float64()})}
    row = {"user": "u", "page": None, "at": 1}
    out = kit.epoch([{**row, "seq": 1, "price": 2.0}, {**row, "seq": 1, "price": 0.5}, {**row, "seq": 3, "price": 9.0}])
    assert out["output"] == [{"user": "u", "one": 2.5, "two": None}]


@pytest.mark.soak
def test_crashes_change_nothing():
    given = events(3, epochs=3, size=12)
    assert survives_every_crash(lambda: PipelineKit(last, rows=COLUMNS), script(given)) > 20


def test_what_cannot_be_is_said_before_the_start():
    def pivot(*args, **options):
        return lambda stream: stream.key_by("user").pivot(*args, **options).write("memory")

    for build, message in [
        (pivot("page", ["a"], "price"), "no event time: say by which column"),
        (pivot("page", ["a"], "cost", by="at"), "no column cost; there are: user"),
        (pivot("page", [], "price", by="at"), "list at least one"),
        (pivot("page", {"a": "x", "b": "x"}, "price", by="at"), "two columns would be called x"),
        (pivot("seq", ["one"], "price", by="at"), "values do not fit column seq of type int32"),
        (pivot("page", ["user"], "price", by="at"), "the input has a column user"),
        (pivot("page", ["a"], "page", repeats="sum"), "sum needs a number, not string"),
        (pivot("page", ["a"], "price", repeats="first"), "repeats='first' is not known"),
        (pivot("page", ["a"], "price", by="at", mode="append"), "mode='append' is not possible here"),
    ]:
        with pytest.raises(BadInput, match=message):
            PipelineKit(build, rows=COLUMNS)
