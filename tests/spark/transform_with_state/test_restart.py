"""Queries of the drop-in beside each other and one after the other, as Spark has it: names, ids, runs that go on, epochs without
data. Each program runs on Spark itself, too."""

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import Row
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.spark.transform_with_state.flows import NO_DATA, ROCKS, SIDES, Flow, conf
from tests.waiting import wait_for

STOP_ACTIVE = "spark.sql.streaming.stopActiveRunOnRestart"

pytestmark = pytest.mark.spark


class Timed(StatefulProcessor):
    """Counts, and sets a timer at each event time."""

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        n = (self.n.get() or (0,))[0] + len(rows)
        self.n.update((n,))
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000))
        yield Row(k=key[0], n=n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=f"{key[0]} fired", n=expiredTimerInfo.getExpiryTimeInMs() // 1000 % 60)

    def close(self):
        pass


@pytest.fixture(params=SIDES)
def flow(spark, tmp_path, request):
    with conf(spark, ROCKS):
        yield Flow(spark, tmp_path, request.param, Timed(), "k string, at timestamp", "k string, n long", "eventTime")
        for query in spark.streams.active:
            query.stop()


def row(key, second):
    return {"k": key, "at": f"2020-01-01T00:00:{second:02}Z"}


def error(call):
    with pytest.raises(Exception) as told:
        call()
    return told.value


DATA_ONLY = [
    (0, [("a", 1)]),
    (1, [("a fired", 1), ("b", 1)]),
    (2, [("b fired", 5), ("c", 1), ("c fired", 3)]),
    (3, [("d", 1)]),
]
EAGER = [
    (0, [("a", 1)]),
    (1, [("a fired", 1)]),
    (2, [("b", 1)]),
    (3, [("b fired", 5)]),
    (4, []),
    (5, [("d", 1)]),
    (6, [("d fired", 9)]),
]
"""With epochs in between the watermark is ahead of c, which is late."""


@pytest.mark.parametrize(("enabled", "wanted"), [(True, EAGER), (False, DATA_ONLY)])
def test_whether_epochs_come_without_data(spark, flow, enabled, wanted):
    with conf(spark, {NO_DATA: enabled}):
        query = flow.start()
        for number, (key, second) in enumerate([("a", 1), ("b", 5), ("c", 3), ("d", 9)]):
            flow.feed(number, [row(key, second)])
            query.processAllAvailable()
        query.stop()
    assert flow.seen == wanted


def test_no_epoch_without_data_comes_at_the_end_either(spark, flow):
    with conf(spark, {NO_DATA: False}):
        flow.feed(0, [row("a", 1)])
        flow.start(availableNow=True).awaitTermination()
        flow.start(availableNow=True).awaitTermination()
    assert flow.seen == DATA_ONLY[:1]


def test_a_second_run_stops_the_first_or_is_refused(spark, flow):
    flow.feed(0, [row("a", 1)])
    first = flow.start()
    first.processAllAvailable()
    with conf(spark, {STOP_ACTIVE: False}):
        told = error(flow.start)
    assert type(told) is Py4JJavaError
    assert told.java_exception.getClass().getName() == "java.lang.IllegalStateException"
    assert told.java_exception.getMessage() == (
        f"Cannot start query with id {first.id} as another query with same id is already active. Perhaps you are attempting to "
        "restart a query from checkpoint that is already active. You may stop the old query by setting the SQL configuration: "
        f'spark.conf.set("{STOP_ACTIVE}", true) and retry.'
    )
    assert first.isActive and first.exception() is None
    second = flow.start()
    assert not first.isActive and first.exception() is None and second.isActive
    assert (second.id, [query.runId for query in spark.streams.active]) == (first.id, [second.runId])
    assert second.runId != first.runId
    flow.feed(1, [row("a", 2)])
    second.processAllAvailable()
    assert [row for _, rows in flow.seen for row in rows if row[0] == "a"] == [("a", 1), ("a", 2)]


def test_a_name_is_had_by_one_query_at_a_time_and_seen_everywhere(spark, flow):
    heard = Heard()
    spark.streams.addListener(heard)
    spark.conf.set(NO_DATA, False)
    try:
        flow.feed(0, [row("a", 1)])
        first = flow.start(name="mine")
        first.processAllAvailable()
        assert first.name == "mine" == first.lastProgress.name == first.lastProgress["name"]
        assert [(query.name, query.id) for query in spark.streams.active] == [("mine", first.id)]
        for state in ("state", "other"):
            told = error(lambda state=state: flow.start(state, name="mine"))
            assert isinstance(told, IllegalArgumentException)
            assert str(told).startswith("Cannot start query with name mine as a query with that name is already active in this ")
        assert first.isActive and flow.start("other", name="another").name == "another"
        first.stop()
        again = flow.start(name="mine")
        assert (again.id, again.name) == (first.id, "mine") and again.runId != first.runId
        again.stop()
        wait_for("the events", lambda: (again.runId, "ended") in heard.events)
    finally:
        spark.streams.removeListener(heard)
        spark.conf.unset(NO_DATA)
    assert [event for event in heard.events if event[0] == first.runId] == [
        (first.runId, "mine", first.id), (first.runId, "mine", 0), (first.runId, "ended")
    ]  # fmt: skip


class Heard(StreamingQueryListener):
    def __init__(self):
        self.events = []

    def onQueryStarted(self, event):
        self.events.append((str(event.runId), event.name, str(event.id)))

    def onQueryProgress(self, event):
        self.events.append((str(event.progress.runId), event.progress.name, event.progress.batchId))

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        self.events.append((str(event.runId), "ended"))


def test_a_query_without_a_name_has_none(flow):
    query = flow.start()
    assert query.name is None
    query.stop()
