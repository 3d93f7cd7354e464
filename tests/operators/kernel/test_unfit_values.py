"""A value that its type would change is refused wherever it goes: outputs, states, merges, batches, defaults, rows of kits."""

import itertools
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from floodplain import lossless
from floodplain.errors import SchemaMismatch, UserError
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Broadcast, List, Map, Reducing, Set, TaskValue, Value
from floodplain.state.types import as_arrow
from floodplain.state.value_check import array_of
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, n long"
NAIVE = datetime(2026, 1, 1, 12)  # noqa: DTZ001
AWARE = datetime(2026, 1, 1, 12, tzinfo=UTC)
EAST = datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))

LOSSY = [
    ("long", 1.5),
    ("long", -0.25),
    ("long", float("nan")),
    ("long", float("inf")),
    ("long", 1e30),
    ("long", 1 << 63),
    ("long", Decimal("1.5")),
    ("long", np.float32(0.5)),
    ("long", "1"),
    ("long", True),
    ("int", 1 << 31),
    ("short", 40_000),
    ("byte", 300.0),
    ("byte", -129),
    ("float", 1e300),
    ("float", (1 << 24) + 1),
    ("double", (1 << 53) + 1),
    ("decimal(4,2)", Decimal("1.234")),
    ("decimal(4,2)", Decimal("123.4")),
    ("decimal(4,0)", 12_345),
    ("timestamp", NAIVE),
    ("timestamp", np.datetime64("2026-01-01T12:00", "us")),
    ("timestamp", pd.Timestamp("2026-01-01T12:00:00.000000001Z")),
    ("timestamp", 1.5),
    ("timestamp_ntz", AWARE),
    ("timestamp_ntz", pd.Timestamp("2026-01-01T12:00:00.000000001")),
    ("date", NAIVE),
    ("date", datetime(2026, 1, 1, tzinfo=UTC)),
    ("date", 1.5),
    ("time", time(1, tzinfo=UTC)),
    ("interval day to second", 0.5),
    ("boolean", 2),
    ("string", 5),
    ("binary", 5),
]
NESTED = [
    ("array<long>", [1, 1.5]),
    ("array<long>", np.array([1.5])),
    ("array<timestamp>", [AWARE, NAIVE]),
    ("array<array<int>>", [[1], [1 << 31]]),
    ("map<string, long>", {"a": 1.5}),
    ("map<string, long>", [{"key": "a", "value": 1.5}]),
    ("map<long, string>", {1.5: "a"}),
    ("struct<a: long, b: string>", {"a": 1.5, "b": "x"}),
    ("struct<a: long, b: string>", (1.5, "x")),
    ("struct<a: long, b: string>", [("a", 1.5), ("b", "x")]),
    ("struct<a: long>", {"a": 1, "other": 2}),
    ("struct<a: struct<b: date>>", {"a": {"b": NAIVE}}),
]
FITS = [
    ("long", 2.0, 2),
    ("long", Decimal("2"), 2),
    ("long", np.int32(7), 7),
    ("long", np.float64(-3.0), -3),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", float("inf"), float("inf")),
    ("double", 5, 5.0),
    ("decimal(4,2)", 5, Decimal("5.00")),
    ("decimal(4,2)", Decimal("1.5"), Decimal("1.50")),
    ("timestamp", EAST, AWARE),
    ("timestamp", pd.Timestamp("2026-01-01T12:00Z"), AWARE),
    ("timestamp_ntz", NAIVE, NAIVE),
    ("timestamp_ntz", np.datetime64("2026-01-01T12:00", "us"), NAIVE),
    ("date", date(2026, 1, 1), date(2026, 1, 1)),
    ("date", datetime(2026, 1, 1), date(2026, 1, 1)),  # noqa: DTZ001
    ("time", time(1, 2, 3, 4), time(1, 2, 3, 4)),
    ("interval day to second", timedelta(microseconds=1), timedelta(microseconds=1)),
    ("string", "ü", "ü"),
    ("binary", b"\xff", b"\xff"),
    ("boolean", np.bool_(True), True),
    ("array<long>", (1.0, None, 3), [1, None, 3]),
    ("array<double>", np.array([1.5]), [1.5]),
    ("map<string, long>", [("a", 2.0)], {"a": 2}),
    ("struct<a: long, b: timestamp>", (2.0, EAST), {"a": 2, "b": AWARE}),
    ("struct<a: long, b: string>", {"a": 1}, {"a": 1, "b": None}),
]
ids = [f"{type_}-{value!r}" for type_, value in [*LOSSY, *NESTED]]


def one_row():
    return {"user": "ada", "n": 1}


def uses(act, *, output="user string", **members):
    """A process function that does this with its states, on the row of a key."""

    def process(self, key, rows, ctx):
        return act(self, ctx) or ()

    return type("Uses", (KeyedProcess,), {"output": output, "process": process, **members})()


def keeps(merge):
    return {"split": lambda value, slots: [value] * slots, "merge": merge}


def first(values):
    return values[0]


def older(one, _):
    return one


PLACES = {
    "output": lambda type_, value: uses(lambda self, ctx: [(value,)], output={"v": type_}),
    "output, as a dict": lambda type_, value: uses(lambda self, ctx: [{"v": value}], output={"v": type_}),
    "side output": lambda type_, value: uses(lambda self, ctx: ctx.emit("side", (value,)), side_outputs={"side": {"v": type_}}),
    "value": lambda type_, value: uses(lambda self, ctx: self.s.set(value), s=Value(type_)),
    "reducing": lambda type_, value: uses(lambda self, ctx: self.s.add(value), s=Reducing(type_, older)),
    "list": lambda type_, value: uses(lambda self, ctx: self.s.append(value), s=List(type_)),
    "list, several": lambda type_, value: uses(lambda self, ctx: self.s.extend([value]), s=List(type_)),
    "map": lambda type_, value: uses(lambda self, ctx: self.s.put("a", value), s=Map("string", type_)),
    "merge": lambda type_, value: uses(lambda self, ctx: self.s.merge("a", value), s=Map("string", type_, older)),
    "task value": lambda type_, value: uses(lambda self, ctx: self.s.set(value), s=TaskValue(type_, **keeps(first))),
}
KEYS = {
    "entry key": lambda type_, value: uses(lambda self, ctx: self.s.put(value, 1), s=Map(type_, "long")),
    "set": lambda type_, value: uses(lambda self, ctx: self.s.add(value), s=Set(type_)),
}


@pytest.mark.parametrize(("type_", "value"), [*LOSSY, *NESTED], ids=ids)
def test_what_a_type_would_change_is_refused_wherever_it_goes(type_, value):
    for place, of in {**PLACES, **({} if "map" in type_ else KEYS)}.items():
        kit = ProcessKit(of(type_, value), rows=ROWS, keys=["user"], name="op")
        with pytest.raises(UserError) as caught:
            kit.epoch([one_row()])
        told = str(caught.value)
        assert "operator op" in told and "'ada'" in told, (place, told)
        assert "side output side" in told or "output" in place or "state s" in told or "value s" in told, (place, told)
        named = repr(value)[:60] in told or "array" in type_ or "map" in type_ or "struct" in type_
        assert named and ("does not fit" in told or "state s" in told), (place, told)
        assert kit.store.head.epoch == 0, place


@pytest.mark.parametrize(("type_", "value"), [*LOSSY, *NESTED], ids=ids)
def test_a_default_that_its_type_would_change_is_refused(type_, value):
    declared = [
        lambda: Value(type_, value),
        lambda: Reducing(type_, older, value),
        lambda: TaskValue(type_, value, **keeps(first)),
    ]
    for declare in declared:
        with pytest.raises(SchemaMismatch, match="is not a"):
            declare()


@pytest.mark.parametrize(("type_", "value"), [*LOSSY, *NESTED], ids=ids)
def test_broadcast_state_and_rows_of_kits_refuse_it_too(type_, value):
    class Told(KeyedProcess):
        s = Broadcast("string", type_)
        output = "user string"

        def process(self, key, rows, ctx):
            return ()

        def on_broadcast(self, rows, ctx):
            self.s.put("a", value)

    kit = ProcessKit(Told(), rows=ROWS, keys=["user"], broadcast="x long")
    with pytest.raises(UserError, match="s"):
        kit.epoch([], broadcast=[{"x": 1}])
    kit = ProcessKit(uses(lambda self, ctx: None), rows=f"user string, v {type_}", keys=["user"])
    with pytest.raises(SchemaMismatch, match=r"operator kit, rows: .* does not fit column v of type"):
        kit.epoch([{"user": "ada", "v": None}, {"user": "ada", "v": value}])


@pytest.mark.parametrize(("type_", "value", "kept"), FITS, ids=[f"{type_}-{value!r}" for type_, value, _ in FITS])
def test_what_fits_reads_the_same_in_its_epoch_and_in_the_next(type_, value, kept):
    class Reads(KeyedProcess):
        unset = Value(type_, value)
        one = Value(type_)
        trail = List(type_)
        pages = Map("string", type_)
        output = pa.schema([("v", as_arrow(type_))])

        def process(self, key, rows, ctx):
            if rows[0].n == 1:
                self.one.set(value)
                self.trail.append(value)
                self.pages.put("a", value)
            for seen in (self.unset.get(), self.one.get(), *self.trail.get(), self.pages.get("a")):
                assert seen == kept, (seen, kept)
                assert isinstance(value, pd.Timestamp) or type(seen) is type(kept), (seen, kept)
            yield (value,)

    kit = ProcessKit(Reads(), rows=ROWS, keys=["user"])
    for n in (1, 2):
        assert kit.epoch([{"user": "ada", "n": n}]) == [{"v": kept}]


def test_no_entry_is_found_by_a_key_that_is_not_its_own():
    def act(self, ctx):
        self.s.put(1, "one")
        return [("ada", self.s.get(asked))]

    for asked in (1.5, Decimal("1.25"), "1", 1 << 64, np.float32(1.5)):  # noqa: B007 — act reads it
        kit = ProcessKit(uses(act, output="user string, s string", s=Map("long", "string")), rows=ROWS, keys=["user"])
        try:
            assert kit.epoch([one_row()]) == [{"user": "ada", "s": None}]
        except UserError as error:
            assert "state s, entry key" in str(error)


def test_merges_of_fractions_read_no_sum_that_the_next_epoch_has_not():
    def act(self, ctx):
        self.pages.merge("a", 0.25)
        self.pages.merge("a", 0.25)
        return [("ada", self.pages.get("a"))]

    kit = ProcessKit(uses(act, output="user string, n double", pages=Map("string", "long")), rows=ROWS, keys=["user"])
    with pytest.raises(UserError, match=r"key Key\(user='ada'\).*state pages: 0.25 does not fit type int64: 0.25 would become 0"):
        kit.epoch([one_row()])


COLUMNS = [
    ("long", pa.array([1.0, 1.5])),
    ("int", pa.array([1, 1 << 40])),
    ("float", pa.array([1.5, 1e300])),
    ("double", pa.array([1, (1 << 53) + 1])),
    ("boolean", pa.array([1, 2])),
    ("boolean", pa.array([0.0, 0.5])),
    ("decimal(4,0)", pa.array([1.0, 1.5])),
    ("decimal(4,1)", pa.array([Decimal("1.00"), Decimal("1.25")])),
    ("double", pa.array([Decimal("1"), Decimal("12345678901234567890123.5")])),
    ("timestamp", pa.array([None, NAIVE])),
    ("timestamp", pa.array([None, date(2026, 1, 1)])),
    ("timestamp_ntz", pa.array([None, AWARE])),
    ("timestamp_ntz", pa.array([1000, 1001], pa.timestamp("ns"))),
    ("date", pa.array([datetime(2026, 1, 1), NAIVE])),  # noqa: DTZ001
    ("date", pa.array([None, AWARE])),
    ("time", pa.array([None, NAIVE])),
    ("array<int>", pa.array([[1], [None, 1 << 40]])),
    ("array<boolean>", pa.array([[1], [None, 3]])),
    ("map<string, float>", pa.array([[("a", 1.0)], [("b", 1e300)]], pa.map_(pa.string(), pa.float64()))),
    ("struct<a: timestamp>", pa.array([None, {"a": NAIVE}])),
    ("struct<a: float>", pa.array([None, {"a": 1e300}])),
    ("struct<a: long>", pa.array([None, {"a": 1, "b": 2}])),
    ("struct<a: array<struct<b: boolean>>>", pa.array([{"a": []}, {"a": [{"b": 1}, {"b": 2}]}])),
]
named = [f"{type_}-{column.type}" for type_, column in COLUMNS]


@pytest.mark.parametrize(("type_", "column"), COLUMNS, ids=named)
def test_a_column_that_its_type_would_change_is_refused(type_, column):
    arrow = as_arrow(type_)
    for sliced in (column, column.slice(1), pa.chunked_array([column.slice(0, 1), column.slice(1)])):
        with pytest.raises(lossless.UNFIT):
            lossless.cast(sliced, arrow)
    assert lossless.first_unfit(column, arrow) == 1
    fits = column.take([0])
    assert lossless.cast(fits, arrow).equals(fits.cast(arrow)), "what fits is what Arrow makes of it"
    assert len(lossless.cast(column.slice(0, 0), arrow)) == 0


class Batched(KeyedBatchProcess):
    output = "user string"

    def __init__(self, act):
        self.act = act

    def process(self, batch, ctx):
        return self.act(batch, ctx)


def batched(act, **members):
    return type("Batched", (Batched,), members)(act)


BATCHED = {
    "output": lambda type_, column: batched(
        lambda batch, ctx: pa.table({"user": ["ada", "bob"], "v": column}), output={"user": "string", "v": type_}
    ),
    "side output": lambda type_, column: batched(
        lambda batch, ctx: ctx.emit("side", pa.table({"user": ["ada", "bob"], "v": column})),
        side_outputs={"side": {"user": "string", "v": type_}},
    ),
    "value": lambda type_, column: batched(lambda batch, ctx: batch.set("s", column), s=Value(type_)),
    "of a frame": lambda type_, column: batched(lambda batch, ctx: batch.set("s", pa.table({"s": column})), s=Value(type_)),
    "reducing": lambda type_, column: batched(lambda batch, ctx: batch.add("s", column), s=Reducing(type_, older)),
    "list": lambda type_, column: batched(lambda batch, ctx: batch.append("s", column, [0, 1]), s=List(type_)),
    "map": lambda type_, column: batched(lambda batch, ctx: batch.put("s", ["a", "b"], column), s=Map("string", type_)),
    "merge": lambda type_, column: batched(
        lambda batch, ctx: batch.merge("s", ["a", "b"], column), s=Map("string", type_, older)
    ),
}


@pytest.mark.parametrize(("type_", "column"), COLUMNS, ids=named)
def test_a_batch_refuses_it_and_names_key_and_value(type_, column):
    value = repr(column[1].as_py())[:40]
    for place, of in BATCHED.items():
        kit = ProcessKit(of(type_, column), rows=ROWS, keys=["user"], name="op")
        with pytest.raises(UserError) as caught:
            kit.epoch([{"user": "ada", "n": 1}, {"user": "bob", "n": 1}])
        told = str(caught.value)
        assert all(part in told for part in ("operator op", value, "does not fit")), (place, told)
        assert ("column v" if "output" in place else "state s") in told, (place, told)
        assert "'ada'" in told or "'bob'" in told, (place, told)


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame], ids=["polars", "pandas"])
def test_frames_are_refused_like_tables(frame):
    given = frame({"user": ["ada", "bob"], "v": [1.0, 1.5]})
    made = batched(lambda batch, ctx: given, output="user string, v long")
    with pytest.raises(UserError, match=r"operator kit, output: 1.5 does not fit column v of type int64.*'bob'"):
        ProcessKit(made, rows=ROWS, keys=["user"]).epoch([one_row()])
    kept = batched(lambda batch, ctx: batch.set("v", given["v"]), v=Value("long"))
    with pytest.raises(UserError, match=r"state v: 1.5 of key {'user': '(ada|bob)'} does not fit int64"):
        ProcessKit(kept, rows=ROWS, keys=["user"]).epoch([one_row(), {"user": "bob", "n": 1}])
    whole = batched(lambda batch, ctx: frame({"user": ["ada"], "v": [2.0]}), output="user string, v long")
    assert ProcessKit(whole, rows=ROWS, keys=["user"]).epoch([one_row()]) == [{"user": "ada", "v": 2}]


def test_task_values_that_are_split_or_merged_into_what_does_not_fit_are_refused():
    for name in ("split", "merge"):
        own = {"split": lambda value, slots: [value] * slots, "merge": first}
        own[name] = (lambda value, slots: [0.5] * slots) if name == "split" else (lambda values: 0.5)
        kit = ProcessKit(uses(lambda self, ctx: self.s.set(1), s=TaskValue("long", **own)), rows=ROWS, keys=["user"])
        kit.epoch([one_row()])
        kit.rescale(2)
        with pytest.raises(UserError, match=r"task value s: .*0.5 would become 0"):
            kit.epoch([])


NUMBERS = [0, 1, -1, 127, 128, 1 << 24, (1 << 24) + 1, 1 << 31, 1 << 53, (1 << 53) + 1, (1 << 63) - 1]
VALUES = [*NUMBERS, *map(float, NUMBERS), *map(Decimal, NUMBERS), 0.5, -1.5, 127.5, Decimal("0.25")]


@pytest.mark.parametrize("type_", ["byte", "short", "int", "long", "double", "decimal(10,1)"])
def test_a_number_is_kept_exactly_or_refused(type_):
    arrow = as_arrow(type_)
    for one, other in itertools.product(VALUES, [None, 0]):
        try:
            made = array_of([other, one], arrow)
        except lossless.UNFIT:
            continue
        assert made.to_pylist() == [other, one], (type_, one)
    assert [array_of([2.0], arrow)[0].as_py()] == [2] if "decimal" not in type_ else True
