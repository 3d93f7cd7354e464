"""The life of a query on a real Spark: stopped, awaited, rescaled, idle, superseded."""

from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest

from floodplain.errors import BadInput, Fenced, LeaseHeld
from floodplain.settings import StoreSettings
from floodplain.spark.runtime import Query, stream
from floodplain.store.store import Store
from tests.processes import Count, Echo, Held
from tests.spark.test_runtime import FAST, ONCE, expected, last_output, run, source, state_of, write_inputs
from tests.waiting import wait_for

pytestmark = pytest.mark.spark
PATIENCE_S = 90


@pytest.fixture(autouse=True)
def others_undisturbed(spark, tmp_path):
    """Nothing of a test that fails is left running."""
    yield
    (tmp_path / "go").touch()
    for query in spark.streams.active:
        query.stop()


def start(spark: Any, folder: Path, process: Any = None, **options: Any) -> Query:
    """A query that goes on until it is stopped."""
    rows = stream(source(spark, folder)).key_by("user").process(process or Count(), name="count")
    given = {"slots": 2, "settings": FAST, **options}
    return rows.write("parquet", path=str(folder / "out")).start(state=folder / "state", **given)


def lease_ends_ms(folder: Path) -> int:
    return Store.open(folder / "state").head.lease.expires_ms


def noted(folder: Path) -> list[int]:
    """The batches that Spark has down as processed."""
    return sorted(int(path.name) for path in (folder / "state" / "checkpoint" / "commits").glob("[0-9]*"))


def test_a_stop_in_the_middle_of_a_long_epoch_finishes_it(spark, tmp_path):
    """Until then nobody else gets the state, though the epoch takes longer than a lease lasts."""
    rows = write_inputs(tmp_path, 3)
    query = start(spark, tmp_path, Held(tmp_path))
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    first_ms = lease_ends_ms(tmp_path)
    wait_for("more than the time of a lease", lambda: lease_ends_ms(tmp_path) - first_ms > FAST.lease_ms)
    with pytest.raises(LeaseHeld):
        start(spark, tmp_path)
    stopping, waiting = Thread(target=query.stop, daemon=True), Thread(target=query.await_termination, daemon=True)
    stopping.start()
    waiting.start()
    wait_for("the stop to begin", lambda: query._driver._drain_lock._shut)
    assert query.is_active and query.manifest.epoch == 0
    (tmp_path / "go").touch()
    for thread in (stopping, waiting):
        thread.join(PATIENCE_S)
    assert not query.is_active and query.exception is None and query.await_termination()
    head = Store.open(tmp_path / "state").head
    assert (head.epoch, head.published, head.lease.expires_ms, noted(tmp_path)) == (1, 1, 0, [0])
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)


def test_a_batch_that_comes_when_the_query_is_to_stop_is_left_for_the_next_start(spark, tmp_path):
    rows = write_inputs(tmp_path, 3)
    query = start(spark, tmp_path, Held(tmp_path))
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    running, looks = query._maintenance.is_running, []
    query._maintenance.is_running = lambda: looks.append("is it stopped?") or running()
    query._driver._drain_lock.shut()
    (tmp_path / "go").touch()
    wait_for("the second batch", lambda: query._driver._turned_away)
    looks.clear()
    wait_for("it to wait for the stop", lambda: len(looks) > 20 or noted(tmp_path) != [0])
    assert query.is_active
    query.stop()
    assert query.exception is None and query.status["message"] == "Stopped"
    assert query.manifest.epoch == 1 and noted(tmp_path) == [0]
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)


def test_a_query_that_ended_by_itself_lets_go_of_the_state_when_it_is_awaited(spark, tmp_path):
    write_inputs(tmp_path, 2)
    published: list[int] = []
    pipeline = (
        stream(source(spark, tmp_path)).key_by("user").process(Count()).foreach_batch(lambda rows, epoch: published.append(epoch))
    )
    for epochs in (2, 3):
        query = pipeline.start(state=tmp_path / "state", slots=1, trigger=ONCE)
        assert query.await_termination(PATIENCE_S)
        head = Store.open(tmp_path / "state").head
        assert (head.epoch, head.published, head.lease.expires_ms) == (epochs, epochs, 0)
        assert published == list(range(1, epochs + 1))
        rows = write_inputs(tmp_path, 1, first=epochs)
    query.stop()
    assert query.await_termination() and len(rows) == 4 * 300


def test_an_epoch_that_asks_for_the_end_of_its_query_is_told_that_it_would_wait_for_itself(spark, tmp_path):
    write_inputs(tmp_path, 1)
    told: list[Exception] = []

    def stop(rows: Any, epoch: int) -> None:
        with pytest.raises(BadInput, match="another thread") as raised:
            wait_for("the query", lambda: queries)[0].stop()
        told.append(raised.value)

    queries: list[Query] = []
    pipeline = stream(source(spark, tmp_path)).key_by("user").process(Count()).foreach_batch(stop)
    queries.append(pipeline.start(state=tmp_path / "state", slots=1, trigger=ONCE))
    queries[0].await_termination()
    assert len(told) == 1 and queries[0].manifest.published == 1


def test_rescaling_a_query_that_runs(spark, tmp_path):
    rows = write_inputs(tmp_path, 1)
    query = start(spark, tmp_path)
    query.process_all_available()
    assert state_of(tmp_path) == expected(rows)
    query.rescale(3)
    with pytest.raises(BadInput, match="0 slots are not possible"):
        query.rescale(0)
    rows = write_inputs(tmp_path, 1, first=1)
    query.process_all_available()
    assert [progress.slots for progress in query.progress] == [2, 3]
    assert query.manifest.assignment.slots == 3 and query.is_active
    query.stop()
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)


def test_the_status_says_what_the_query_is_at(spark, tmp_path):
    write_inputs(tmp_path, 1)
    query = start(spark, tmp_path, Held(tmp_path))
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    assert query.status == {"message": "Processing new data", "isDataAvailable": True, "isTriggerActive": True}
    (tmp_path / "go").touch()
    query.process_all_available()
    wait_for("nothing to do", lambda: query.status["message"] == "Waiting for data to arrive")
    query.stop()
    assert query.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
    static = stream(spark.read.parquet(str(tmp_path / "in"))).key_by("user").process(Count()).write("memory")
    assert static.start(state=tmp_path / "static").status["message"] == "done"


def test_timers_of_processing_time_fire_while_no_data_comes(spark, tmp_path):
    write_inputs(tmp_path, 1)
    pipeline = stream(source(spark, tmp_path)).key_by("user").process(Echo()).write("memory")
    query = pipeline.start(state=tmp_path / "state", slots=1, settings=FAST)
    users = set(pq.read_table(tmp_path / "in")["user"].to_pylist())
    wanted = sorted([*users, *(f"{user} again" for user in users)])
    wait_for("the timers", lambda: sorted(query.sink.table()["user"].to_pylist()) == wanted)
    assert [(progress.epoch, progress.batch_id, progress.rows) for progress in query.progress] == [(1, 0, 300), (2, 0, 0)]
    query.stop()


def test_a_static_run_longer_than_its_lease_keeps_it(spark, tmp_path):
    rows = write_inputs(tmp_path, 1)
    static = stream(spark.read.parquet(str(tmp_path / "in"))).key_by("user").process(Held(tmp_path), name="count")
    given = {"state": tmp_path / "state", "slots": 1, "settings": FAST}
    running = Thread(target=static.write("memory").start, kwargs=given, daemon=True)
    running.start()
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    first_ms = lease_ends_ms(tmp_path)
    wait_for("more than the time of a lease", lambda: lease_ends_ms(tmp_path) - first_ms > FAST.lease_ms)
    with pytest.raises(LeaseHeld):
        static.write("memory").start(**given)
    (tmp_path / "go").touch()
    running.join(PATIENCE_S)
    assert state_of(tmp_path) == expected(rows) and lease_ends_ms(tmp_path) == 0


@pytest.mark.parametrize("epoch", ["no", "an"])
def test_a_driver_that_was_taken_over_from_in_an_epoch_ends_and_says_so(spark, tmp_path, epoch):
    """It does not wait for the end of an epoch that cannot be committed."""
    write_inputs(tmp_path, 1)
    query = start(spark, tmp_path, Held(tmp_path))
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    if epoch == "no":
        (tmp_path / "go").touch()
        query.process_all_available()
    other = Store.open(tmp_path / "state", settings=StoreSettings(lease_ms=60_000)).writer("other", force=True)
    with pytest.raises(Fenced, match=r"superseded by lease 2 of 'other'"):
        query.await_termination()
    assert not query.is_active and isinstance(query.exception, Fenced)
    with pytest.raises(Fenced):
        query.process_all_available()
    query.stop()
    assert other.store.history.refresh().epoch == (epoch == "no")
    other.close()
