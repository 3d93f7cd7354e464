"""PySpark processors on the kernel, driven by the test kit: no Spark runs."""

import datetime
import decimal
from typing import ClassVar

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from floodplain.errors import UserError
from floodplain.spark.transform_with_state.handle import table_names
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.spark.transform_with_state.types import Codec
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit
from tests.spark.transform_with_state.programs import ALLOWED_NAMES, LONG, Wrong

ROWS = StructType().add("user", StringType()).add("n", LongType()).add("at", LongType())
OUTPUT = StructType().add("user", StringType()).add("what", StringType())


def no_parser(text: str) -> StructType:
    raise AssertionError(f"{text} needs Spark")


def stateful(processor: StatefulProcessor, mode: str, *, pandas: bool = False, static: bool = False) -> StatefulProcess:
    declared, _ = declared_by(processor, mode, no_parser, static=static)
    return StatefulProcess(processor, Shape(ROWS, ("user",), OUTPUT), mode, declared, {}, pandas=pandas)


def kit(processor: StatefulProcessor, mode: str = "none", *, pandas: bool = False, static: bool = False, **more) -> ProcessKit:
    process = stateful(processor, mode, pandas=pandas, static=static)
    return ProcessKit(process, rows="user string, n long, at long", keys=["user"], **more)


def row(user: str | None, n: int = 0, at: int = 0) -> dict[str, object]:
    return {"user": user, "n": n, "at": at}


def said(rows: list[dict[str, object]]) -> list[tuple]:
    return [(found["user"], found["what"]) for found in rows]


class Sum(StatefulProcessor):
    """Keeps a sum, the numbers and how often each came."""

    calls: ClassVar[list[str]] = []

    def init(self, handle):
        assert isinstance(handle, StatefulProcessorHandle)
        self.calls.append("init")
        self.total = handle.getValueState("Total So Far", LONG)
        self.seen = handle.getListState("seen", LONG)
        self.times = handle.getMapState("user", LONG, LONG)  # named as the key column is

    def handleInputRows(self, key, rows, timerValues):
        assert iter(rows) is rows
        for given in rows:
            self.total.update(((self.total.get() or (0,))[0] + given.n,))
            self.seen.appendValue((given.n,))
            before = self.times.getValue((given.n,))
            self.times.updateValue((given.n,), (1 if before is None else before.n + 1,))
        yield Row(user=key[0], what=f"{self.total.get()} {list(self.seen.get())} {sorted(self.times.iterator())}")

    def close(self):
        self.calls.append("close")


def test_state_of_every_kind_carries_over_and_callbacks_come_in_order():
    Sum.calls.clear()
    driven = kit(Sum())
    assert Sum.calls == ["init", "close"], "asked once on the driver"
    assert sorted(said(driven.epoch([row("ada", 1), row("ada", 1), row("bob", 5)]))) == [
        ("ada", "(2,) [(1,), (1,)] [((1,), (2,))]"),
        ("bob", "(5,) [(5,)] [((5,), (1,))]"),
    ]
    assert said(driven.epoch([row("ada", 2)])) == [("ada", "(4,) [(1,), (1,), (2,)] [((1,), (2,)), ((2,), (1,))]")]
    assert said(driven.epoch([row(None, 3)])) == [(None, "(3,) [(3,)] [((3,), (1,))]")]
    assert Sum.calls == ["init", "close"] * 4


def test_states_are_what_spark_calls_them():
    class Kinds(Sum):
        def init(self, handle):
            super().init(handle)
            assert isinstance(self.total, ValueState)
            assert isinstance(self.seen, ListState)
            assert isinstance(self.times, MapState)

    kit(Kinds()).epoch([row("u")])


class Twice(StatefulProcessor):
    """Sets a timer for each row, and in that timer's turn another one that is over already."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for given in rows:
            self.handle.registerTimer(given.n)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 10 == 0:
            self.handle.registerTimer(at - 1)
        return iter([Row(user=key[0], what=str(at))])


def test_when_no_data_comes_timers_fire_by_the_rule_of_the_driver():
    """Those up to the watermark of the last epoch had their turn in it; what they set for the past waits for it to move."""
    process = stateful(Twice(), "eventtime")
    driven = PipelineKit(
        lambda stream: stream.watermark("at", "0 ms").key_by("user").process(process, name="twice").write("memory"),
        rows="user string, n long, at long",
    )
    assert said(driven.epoch([row("ada", 20, at=40)], watermark_ms=30)["output"]) == [("ada", "20")]
    assert not driven.tick(now_ms=1)
    assert driven.tick(now_ms=2, watermark_ms=31), "the watermark has moved"
    assert said(driven.sinks["output"].epochs[2].to_pylist()) == [("ada", "19")]


ARRAY = StructType().add("a", ArrayType(LongType()))
NESTED = StructType().add("a", ArrayType(LongType())).add("m", MapType(StringType(), ARRAY)).add("s", ARRAY)


class Scratch(StatefulProcessor):
    """Changes in place what it reads, and updates another value."""

    def init(self, handle):
        self.one = handle.getValueState("one", ARRAY)
        self.value = handle.getValueState("value", NESTED)
        self.items = handle.getListState("items", ARRAY)
        self.map = handle.getMapState("map", LONG, NESTED)
        self.n = handle.getValueState("n", LONG)

    def handleInputRows(self, key, rows, timerValues):
        given = ([0], {"k": Row(a=[0])}, Row(a=[0]))
        if not self.n.exists():
            self.one.update(([0],))
            self.value.update(given)
            self.items.appendValue(([0],))
            self.map.updateValue((1,), given)
        for seen in (given, self.value.get(), self.map.getValue((1,)), *self.map.values()):
            for array in (seen[0], seen[1]["k"].a, seen[2].a):
                array.append(9)
            seen[1]["new"] = None
        for seen in (self.one.get(), *self.items.get()):
            seen[0].append(9)
        self.n.update((1,))
        states = self.one.get(), self.value.get(), list(self.items.get()), self.map.getValue((1,)), list(self.map.values())
        yield Row(user=key[0], what=repr(states))


def test_what_was_read_may_be_changed_and_is_not_seen_again():
    driven = kit(Scratch())
    nested = "[0], {'k': Row(a=[0])}, Row(a=[0])"
    named = "Row(a=[0], m={'k': Row(a=[0])}, s=Row(a=[0]))"
    for _ in range(3):
        assert said(driven.epoch([row("u")])) == [("u", f"(([0],), ({nested}), [([0],)], {named}, [({nested})])")]


def test_rows_have_maps_and_structs_as_the_worker_of_spark_makes_them():
    class Given(Sum):
        def handleInputRows(self, key, rows, timerValues):
            yield Row(user=key[0], what=repr(tuple(next(rows))))

    rows = StructType().add("user", StringType()).add("m", MapType(StringType(), LongType())).add("s", ARRAY)
    process = StatefulProcess(Given(), Shape(rows, ("user",), OUTPUT), "none", {}, {}, pandas=False)
    driven = ProcessKit(process, rows="user string, m map<string, long>, s struct<a: array<long>>", keys=["user"])
    given = pa.table({"m": pa.array([{"x": 1}], pa.map_(pa.string(), pa.int64()))})["m"][0].as_py()
    assert said(driven.epoch([{"user": "u", "m": {"x": 1}, "s": {"a": [1]}}])) == [("u", repr(("u", given, {"a": [1]})))]


class Timed(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for given in rows:
            if given.n:
                self.handle.registerTimer(given.n)
        times = (timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs())
        return iter([Row(user=key[0], what=f"{times} {list(self.handle.listTimers())}")])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        self.handle.deleteTimer(at + 1)
        self.handle.registerTimer(at)
        self.handle.registerTimer(at - 7)
        yield Row(user=key.user, what=f"fired {at} {list(self.handle.listTimers())}")


def test_timers_fire_as_they_stood_when_the_rows_were_done():
    driven = kit(Timed(), "eventtime")
    assert said(driven.epoch([row("u", 100), row("u", 101)], now_ms=9)) == [("u", "(9, 0) [100, 101]")]
    # The one deletes the other, which fires all the same; what is set for the past waits for the next epoch.
    assert said(driven.epoch([], watermark_ms=150, now_ms=9)) == [
        ("u", "fired 100 [93, 100]"),
        ("u", "fired 101 [93, 94, 101]"),
    ]
    assert said(driven.epoch([row("v", 40)], watermark_ms=150, now_ms=9))[1:] == [
        ("v", "fired 40 [33, 40]"),
        ("u", "fired 93 [86, 93]"),
        ("u", "fired 94 [86, 87, 94]"),
    ]


def test_processing_time_and_no_time():
    driven = kit(Timed(), "processingtime")
    assert said(driven.epoch([row("u", 5)], now_ms=10)) == [("u", "(10, 0) [5]"), ("u", "fired 5 [-2, 5]")]
    with pytest.raises(UserError, match="INVALID_TIME_MODE"):
        kit(Timed(), "none").epoch([row("u", 5)])


def test_a_row_at_the_watermark_is_late_by_event_time_only():
    for mode, late in (("eventtime", 2), ("processingtime", 0)):
        driven = kit(Sum(), mode, event_time="at")
        driven.epoch([row("u", 1, 50)], watermark_ms=50)
        driven.epoch([row("u", 1, 49), row("u", 1, 50), row("u", 1, 51)], watermark_ms=50)
        assert driven.late == late


def test_output_older_than_the_watermark_is_refused_where_it_has_an_event_time():
    class Echo(Timed):
        def handleInputRows(self, key, rows, timerValues):
            return (Row(user=key[0], at=given.n) for given in rows)

    output = StructType().add("user", StringType()).add("at", LongType())
    process = StatefulProcess(Echo(), Shape(ROWS, ("user",), output, event_time_output="at"), "eventtime", {}, {}, pandas=False)
    driven = ProcessKit(process, rows="user string, n long, at long", keys=["user"], event_time="at")
    assert driven.epoch([row("u", 50, 60)], watermark_ms=50) == [{"user": "u", "at": 50}]
    with pytest.raises(PySparkRuntimeError, match="EMITTING_ROWS_OLDER_THAN_WATERMARK"):
        driven.epoch([row("u", 49, 60)], watermark_ms=50)


class Frames(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", LONG)

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            assert list(frame.columns) == ["user", "n", "at"] and frame.index[0] == 0
            self.total.update((frame.n.sum() + (self.total.get() or (0,))[0],))
        yield pd.DataFrame({"what": [str(self.total.get())], "user": key})


def test_frames_go_in_and_come_out_by_name():
    driven = kit(Frames(), pandas=True)
    assert said(driven.epoch([row("u", 1), row("u", 2)])) == [("u", "(3,)")]
    assert said(driven.epoch([row("u", 4)])) == [("u", "(7,)")]


IN_INIT = {
    "v.get()": "operation=v.get with invalid handle state=PRE_INIT",
    "handle.registerTimer(1)": "INVALID_HANDLE_STATE",
    "handle.getValueState('v', LONG)": "Value state v already exists",
    "handle.deleteIfExists('v'); handle.getValueState('v', LONG)": "DUPLICATE_STATE_VARIABLE_DEFINED",
    "handle.deleteIfExists('m'); handle.getListState('m', LONG)": "DUPLICATE_STATE_VARIABLE_DEFINED",
    "handle.getListState('l', LONG)": "List state l already exists",
    "handle.getMapState('m', LONG, LONG)": "Map state m already exists",
    "handle.getListState('v', LONG)": "DUPLICATE_STATE_VARIABLE_DEFINED",
    "handle.getValueState('t', LONG, -1)": "TTL_DURATION_MUST_BE_POSITIVE",
    "handle.getValueState('$x', LONG)": "RESERVED_CHARS",
    "handle.getValueState('', LONG)": "INVALID_NAME",
    "handle.getValueState(' x', LONG)": "INVALID_NAME",
    "handle.deleteIfExists('$x')": "RESERVED_CHARS",
    "handle.deleteIfExists('')": "operation=remove_col_family with invalid name",
}
IN_ROWS = {
    "l.put([])": "EMPTY_LIST_VALUE",
    "l.appendList([])": "EMPTY_LIST_VALUE",
    "v.update((1, 2))": "1 fields are required while 2 values are provided",
    "v.update(())": "1 fields are required while 0 values are provided",
    "v.update(5)": "not iterable",
    "handle.getValueState('q', LONG)": "INVALID_HANDLE_STATE",
    "handle.getValueState('v', LONG)": "Value state v already exists",
    "handle.getListState('v', LONG)": "INVALID_HANDLE_STATE",
    "handle.deleteIfExists('v')": "INVALID_HANDLE_STATE",
    "handle.registerTimer('x')": "cannot be interpreted as an integer",
    "handle.registerTimer(2**63)": "out of range",
}


@pytest.mark.parametrize("code", IN_INIT)
def test_init_is_refused_what_spark_refuses(code):
    with pytest.raises(PySparkRuntimeError, match=IN_INIT[code]):
        kit(Wrong(init=code), "processingtime")


def test_ttl_needs_processing_time():
    with pytest.raises(PySparkRuntimeError, match="INCORRECT_TIME_MODE_TO_ASSIGN_TTL"):
        kit(Wrong(init="handle.getValueState('t', LONG, 5)"), "eventtime")


@pytest.mark.parametrize("code", IN_ROWS)
def test_rows_are_refused_what_spark_refuses(code):
    with pytest.raises(UserError, match=IN_ROWS[code]):
        kit(Wrong(rows=code), "processingtime").epoch([row("u")])


@pytest.mark.parametrize("give", ["None", "iter([('u', 'x')])", "[{'user': 'u'}]", "iter([Row('u', 'x')])"])
def test_output_that_is_no_row_is_refused(give):
    with pytest.raises(UserError):
        kit(Wrong(give=give)).epoch([row("u")])


def test_what_is_no_row_is_told_as_spark_tells_it_and_what_to_give():
    with pytest.raises(
        UserError, match=r"AttributeError in .*key \('u',\).*\('u', 'x'\) has no attribute asDict: give out rows as"
    ):
        kit(Wrong(give="iter([('u', 'x')])")).epoch([row("u")])


def test_output_goes_by_name_and_lacking_columns_are_null():
    driven = kit(Wrong(give="iter([Row(what='x', more=1, user='u'), Row(user='v')])"))
    assert said(driven.epoch([row("u")])) == [("u", "x"), ("v", None)]


@pytest.mark.parametrize("name", ALLOWED_NAMES)
def test_any_other_name_of_a_state_is_allowed(name):
    kit(Wrong(init=f"handle.getValueState({name!r}, LONG)")).epoch([row("u")])


@pytest.mark.parametrize("static", [False, True])
def test_state_outside_of_callbacks_is_refused(static):
    phase = "Implicit key" if static else "operation=v.get with invalid handle state=PRE_INIT"
    with pytest.raises(PySparkRuntimeError, match=phase):
        declared_by(Wrong(close="v.get()"), "none", no_parser, static=static)


@pytest.mark.parametrize(
    ("dtype", "given", "kept"),
    [
        (LongType(), 5, 5),
        (LongType(), True, None),
        (LongType(), 1.5, None),
        (LongType(), 2**63, None),
        (IntegerType(), 2**31 + 5, -(2**31) + 5),
        (DoubleType(), 1, None),
        (FloatType(), 1.1, 1.100000023841858),
        (StringType(), 5, "5"),
        (StringType(), True, "true"),
        (StringType(), 1e10, "1.0E10"),
        (StringType(), 0.0001, "1.0E-4"),
        (DecimalType(10, 2), decimal.Decimal("1.555"), decimal.Decimal("1.56")),
        (DecimalType(10, 2), 5, None),
        (TimestampType(), datetime.datetime(2020, 1, 1, 12), datetime.datetime(2020, 1, 1, 12)),
    ],
)
def test_a_value_becomes_what_spark_makes_of_it(dtype, given, kept):
    codec = Codec(StructType().add("x", dtype))
    assert codec.decode(codec.encode((given,), "failed")) == (kept,)
    several = Codec(StructType().add("x", dtype).add("y", LongType()))
    assert several.decode(several.encode((given, 7), "failed")) == (kept, 7)


def test_a_decimal_that_does_not_fit_is_refused():
    with pytest.raises(PySparkRuntimeError, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        Codec(StructType().add("x", DecimalType(4, 2))).encode((decimal.Decimal(1000),), "failed")


def test_names_of_states_stay_apart_and_stay_the_same():
    names = ["count", "Count", "COUNT", "a b", "a_b", "ab", "__x", "é", "è", "x" * 200, "event_timers", "user"]
    found = table_names(names, ["user", "event_timers"])
    assert len(set(found.values())) == len(names)
    assert found["count"] == "count" and found["a_b"] == "a_b"
    assert table_names(reversed(names), ["user", "event_timers"]) == found
