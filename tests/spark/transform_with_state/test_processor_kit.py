"""``ProcessKit`` with a ``StatefulProcessor``: what it takes and refuses, and where it follows Spark and not ``TwsTester``."""

import subprocess
import sys

import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructType

import floodplain as fp
from tests.spark.transform_with_state.programs import LONG

ROWS, OUTPUT = "user string, n long, at long", "user string, what string"


class Says(StatefulProcessor):
    """Runs the code of a class over the states, for each call, and gives out what it makes."""

    def __init__(self, rows="None", expired="None", ttl_ms=None):
        self.code = {"rows": rows, "expired": expired}
        self.ttl_ms = ttl_ms
        self.calls = 0

    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("theValue", LONG, self.ttl_ms)
        self.items = handle.getListState("items", "n long")
        self.map = handle.getMapState("map", "n long", LONG)

    def say(self, which, key, times, **more):
        self.calls += 1
        names = {"v": self.value, "l": self.items, "m": self.map, "handle": self.handle, "self": self, "times": times, **more}
        yield Row(user=key[0], what=str(eval(self.code[which], names)))

    def handleInputRows(self, key, rows, timerValues):
        return self.say("rows", key, timerValues, rows=[row.n for row in rows])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self.say("expired", key, timerValues, at=expiredTimerInfo.getExpiryTimeInMs())

    def handleInitialState(self, key, initialState, timerValues):
        self.value.update((initialState.start,))


def kit(processor, mode="None", **more):
    event_time = "at" if mode == "EventTime" else None
    told = {"rows": ROWS, "keys": ["user"], "output": OUTPUT, "time_mode": mode, "event_time": event_time, **more}
    return fp.ProcessKit(processor, **told)


def sparks(processor, mode="None"):
    return TwsTester(processor, timeMode=mode, eventTimeExtractor=(lambda row: row.at) if mode == "EventTime" else None)


def row(n=0, at=1, user="u"):
    return Row(user=user, n=n, at=at)


def said(rows):
    return [found["what"] for found in rows]


@pytest.mark.parametrize(
    ("code", "theirs", "ours"),
    [
        ("(m.updateValue((1,), (1,)), m.removeKey((1,)), m.exists())[-1]", "True", "False"),
        ("(v.update(('x',)), v.get())[-1]", "('x',)", "(None,)"),
        ("(v.update((2**63,)), v.get())[-1]", f"({2**63},)", "(None,)"),
        ("type(m.updateValue((1,), (2,)) or m.getValue((1,))).__name__", "tuple", "Row"),
        ("(lambda it: (l.clear(), l.appendValue((2,)), list(it)))((l.put([(1,)]), l.get())[1])[-1]", "[(1,)]", "[(2,)]"),
    ],
)
def test_states_are_those_of_spark(code, theirs, ours):
    assert [made.what for made in sparks(Says(code)).test("u", [row()])] == [theirs]
    assert said(kit(Says(code)).epoch([row()])) == [ours]


@pytest.mark.parametrize("code", ["l.put([])", "l.appendList([])", "v.update(5)", "v.update((1, 2))"])
def test_what_spark_refuses_is_refused_and_changes_nothing(code):
    assert len(sparks(Says(code)).test("u", [row()])) == 1
    driven = kit(Says(f"(v.update((7,)), {code})"))
    with pytest.raises(fp.UserError):
        driven.epoch([row()])
    assert driven.peek("theValue", "u") is None


def test_timers_without_time_are_refused_with_sparks_condition():
    driven = kit(Says("handle.registerTimer(5)"))
    with pytest.raises(fp.UserError, match="INVALID_TIME_MODE") as refused:
        driven.epoch([row()])
    assert isinstance(refused.value.__cause__, PySparkRuntimeError)
    with pytest.raises(fp.UserError, match="INVALID_TIME_MODE"):
        driven.timers("u")


def test_a_key_without_rows_on_time_is_not_called():
    theirs, ours = sparks(Says("rows"), "EventTime"), kit(Says("rows"), "EventTime")
    theirs.setWatermark(10)
    ours.epoch(watermark_ms=10)
    late = [row(1, at=9), row(2, at=10)]
    assert [made.what for made in theirs.test("u", late)] == ["[]"]
    assert ours.epoch(late) == [] and ours.late == 2
    assert said(ours.epoch([*late, row(3, at=11)])) == ["[3]"]


@pytest.mark.parametrize(("mode", "clock"), [("EventTime", "watermark_ms"), ("ProcessingTime", "now_ms")])
def test_timers_for_the_past_fire_in_the_same_epoch(mode, clock):
    driven = kit(Says("handle.registerTimer(5)", "at"), mode)
    driven.epoch(**{clock: 10})
    assert said(driven.epoch([row(at=11)])) == ["None", "5"]
    assert driven.timers("u") == []


def test_what_a_timer_sets_for_the_past_waits_for_the_next_epoch():
    driven = kit(Says("handle.registerTimer(9)", "at if at == 4 else handle.registerTimer(4)"), "ProcessingTime")
    assert said(driven.epoch([row()])) == ["None"] and driven.timers("u") == [9]
    assert said(driven.epoch(now_ms=10)) == ["None"] and driven.timers("u") == [4]
    assert said(driven.epoch()) == ["4"] and driven.timers("u") == []


def test_times_are_those_of_the_epoch_and_stay_until_told():
    code = "(times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs())"
    assert said(kit(Says(code)).epoch([row()], now_ms=7)) == ["(-1, -1)"]
    processing = kit(Says(code), "ProcessingTime")
    assert said(processing.epoch([row()], now_ms=7)) == said(processing.epoch([row()])) == ["(7, 0)"]
    event = kit(Says(code), "EventTime")
    assert said(event.epoch([row()], now_ms=7, watermark_ms=5)) == said(event.epoch([row(at=6)])) == ["(7, 5)"]


def test_a_time_to_live_ends_for_processor_and_peek():
    driven = kit(Says("v.exists() or v.update((1,))", ttl_ms=100), "ProcessingTime")
    assert said(driven.epoch([row()], now_ms=50)) == ["None"]
    assert said(driven.epoch([row()], now_ms=149)) == ["True"] and driven.peek("theValue", "u") == (1,)
    driven.epoch(now_ms=151)
    assert driven.peek("theValue", "u") is None
    driven.update("theValue", "u", (5,))
    assert driven.epoch(now_ms=250) == [] and driven.peek("theValue", "u") == (5,)
    driven.epoch(now_ms=252)
    assert driven.peek("theValue", "u") is None


def test_attributes_of_a_processor_end_with_the_epoch():
    theirs, processor = sparks(Says("self.calls")), Says("self.calls")
    driven = kit(processor)
    for call in (1, 2):
        assert [made.what for made in theirs.test("u", [row()])] == [str(call)]
        assert said(driven.epoch([row()])) == ["1"]
    assert processor.calls == 0 and not hasattr(processor, "value")


@pytest.mark.parametrize("slots", [1, 3])
def test_several_key_columns_slots_and_the_initial_state(slots):
    driven = fp.ProcessKit(
        Says("v.get()"), rows="user string, g int, n long", keys=["user", "g"], output=OUTPUT, slots=slots,
        initial_state=StructType().add("g", LongType()).add("user", StringType()).add("start", LongType()),
    )  # fmt: skip
    states = [{"user": f"u{n}", "g": n % 2, "start": n} for n in range(6)]
    rows = [Row(user=f"u{n}", g=n % 2, n=0) for n in range(3)]
    assert sorted(said(driven.epoch(rows, initial_state=states))) == ["(0,)", "(1,)", "(2,)"]
    assert driven.peek("theValue", ("u5", 1)) == (5,) and driven.peek("theValue", ("u5", 0)) is None
    driven.update("theValue", ("u5", 0), (9,))
    driven.delete("theValue", ("u5", 1))
    assert driven.peek("theValue", ("u5", 1)) is None and driven.peek("theValue", ("u5", 0)) == (9,)
    with pytest.raises(fp.BadInput, match="first epoch"):
        driven.epoch(initial_state=states)
    with pytest.raises(fp.BadInput, match="columns user, g"):
        driven.peek("theValue", "u5")


class Frames(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", LONG)

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            self.total.update((int(frame.n.sum()) + (self.total.get() or (0,))[0],))
        yield pd.DataFrame({"user": key, "what": [str(self.total.get())]})


def test_data_frames_go_in():
    driven = kit(Frames(), pandas=True)
    assert said(driven.epoch(pd.DataFrame({"user": ["u", "u"], "n": [1, 2], "at": [0, 0]}))) == ["(3,)"]
    assert said(driven.epoch([row(4)])) == ["(7,)"]


def test_lists_and_maps_are_replaced_as_a_whole():
    driven = kit(Says())
    driven.update("items", "u", [(1,), (None,)])
    driven.update("items", "u", [(2,)])
    driven.update("map", "u", {(1,): (1,)})
    driven.update("map", "u", {(2,): (2,)})
    assert (driven.peek("items", "u"), driven.peek("map", "u")) == ([(2,)], {(2,): (2,)})
    driven.update("items", "u", [])
    driven.update("map", "u", {})
    assert (driven.peek("items", "u"), driven.peek("map", "u")) == ([], {})


def test_peek_changes_nothing():
    driven = kit(Says("handle.registerTimer(5)", "at"), "ProcessingTime")
    driven.epoch([row()])
    before = driven.store.head.epoch
    assert (driven.peek("theValue", "u"), driven.timers("u"), driven.timers("v")) == (None, [5], [])
    assert driven.store.head.epoch == before
    driven.update("theValue", "u", (1,))
    assert said(driven.epoch(now_ms=5)) == ["5"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: kit(Says), "Says is a class: give an object of it, Says()"),
        (lambda: kit(Says(), output=None), "give output="),
        (lambda: kit(Says(), "Never"), "time_mode='Never' is not known: use 'None', 'ProcessingTime', 'EventTime'"),
        (lambda: kit(Says(), "EventTime", event_time=None), "needs a watermark"),
        (lambda: kit(Says(), initial_state="name string, start long"), "the initial state has no column user"),
        (lambda: kit(Says()).epoch(initial_state=[{"user": "u"}]), "there is no initial state"),
        (lambda: kit(Says()).peek("value", "u"), "init declares no state 'value'; there are: 'theValue', 'items', 'map'"),
        (lambda: kit(Says(), on_error="dead_letter"), "dead_letter"),
        (lambda: kit(Ordinary()), "output: only for a StatefulProcessor"),
        (lambda: fp.ProcessKit(Ordinary(), rows=ROWS, keys=["user"]).peek("n", "u"), "use state()"),
    ],
)
def test_wrong_use_is_refused(wrong, message):
    with pytest.raises(fp.BadInput) as refused:
        wrong()
    assert message in str(refused.value)


class Ordinary(fp.KeyedProcess):
    output = "user string"

    def process(self, key, rows, ctx):
        yield (key.user,)


def test_pyspark_is_loaded_only_for_a_processor():
    code = (
        "import sys, floodplain as fp\n"
        "class Ordinary(fp.KeyedProcess):\n"
        "    output = 'user string'\n"
        "    def process(self, key, rows, ctx):\n"
        "        yield (key.user,)\n"
        "kit = fp.ProcessKit(Ordinary(), rows='user string', keys=['user'])\n"
        "assert kit.epoch([{'user': 'u'}]) == [{'user': 'u'}]\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_java_is_started():
    code = (
        "from tests.spark.transform_with_state.test_processor_kit import Says, kit, row\n"
        "assert kit(Says('1')).epoch([row()])\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
