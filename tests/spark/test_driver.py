"""The driver and what runs beside it, with tasks in this process: the end of a query, its lease, compaction that fails."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from floodplain.clock import Clock, ManualClock, SystemClock
from floodplain.errors import BadInput, Conflict, LeaseHeld, Refused, Unavailable
from floodplain.operators.kernel.process import Process
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.lease_takeover import take_over
from floodplain.settings import StoreSettings
from floodplain.spark.driver import Driver, Interrupted
from floodplain.spark.maintenance import Maintenance
from floodplain.store.compaction.policy import TieredPolicy
from floodplain.testing.pipeline_kit import LocalEngine, PipelineKit
from floodplain.tiers.blobs import Blobs
from floodplain.versions.records.edit import SourcePosition
from tests.faults import FaultyBlobs, Op, Plan
from tests.processes import Count, Echo, Held
from tests.store.world import memory, open_store, settings
from tests.waiting import wait_for

ROWS = "user string, amount long"
MINUTE = settings(lease_ms=60_000)


class Listener:
    """A query that nobody looks after."""

    def __init__(self) -> None:
        self.is_running: Callable[[], bool] = lambda: True

    def concern(self) -> None: ...
    def epoch_done(self) -> None: ...
    def lease_lost(self, error: Exception) -> None: ...


def started(
    process: Process,
    blobs: Blobs,
    clock: Clock,
    chosen: StoreSettings = MINUTE,
    listener: Listener | Maintenance | None = None,
    **given: Any,
) -> Driver:
    """A driver that holds the lease and is about to run epochs."""
    kit = PipelineKit(lambda stream: stream.key_by("user").process(process, name="count").write("memory"), rows=ROWS)
    store = open_store(blobs, clock, chosen)
    place = StateLocation(store, store.writer("one"), blobs.url, chosen, {}, blobs)
    engine: Any = LocalEngine((), kit._plan)
    driver = Driver(place, kit._plan, engine, 2, [""], listener or Listener(), default_slots=2, **given)
    driver.prepare({"": kit._inputs[""].empty_table()}, StartChanges())
    return driver


def epoch(driver: Driver, *users: str) -> None:
    """What a batch of Spark's comes to."""
    rows = driver._engine.empty(driver.epochs.bound.empty[""].schema)
    given = rows.from_pylist([{"user": user, "amount": 1} for user in users], rows.schema)
    with driver._drain_lock.alone() as may_begin:
        if may_begin:
            driver.epochs.run({"": given}, None, driver.store.history.clock.now_ms(), 0)
            driver._listener.epoch_done()


def test_no_timer_fires_after_the_end():
    clock = ManualClock()
    driver = started(Echo(), memory(), clock)
    epoch(driver, "ada")
    clock.advance_ms(1000)
    driver.close()
    assert not driver.tick() and driver.store.history.refresh().epoch == 1
    driver.close()
    with pytest.raises(BadInput, match="has stopped"):
        driver.heartbeat(None, 1)


def test_epochs_that_come_with_data_only():
    """No timer fires in between; how far publishing got is noted all the same."""
    clock = ManualClock()
    driver = started(Echo(), memory(), clock, without_data=False)
    epoch(driver, "ada")
    clock.advance_ms(MINUTE.lease_ms // 3)
    assert not driver.tick() and (driver.store.head.epoch, driver.store.head.published) == (1, 1)
    epoch(driver, "bob")
    assert [progress.output_rows for progress in driver.epochs.progress.epochs] == [1, 2], "it fires with the next rows"
    driver.close()


@pytest.mark.parametrize("method", ["create", "delete", "list", "get"])
def test_the_lease_is_released_whatever_else_fails_at_the_end(method):
    class Once(Plan):
        """The first such operation at the end is refused."""

        armed = False

        def before(self, op: Op) -> None:
            if self.armed and op.method == method:
                self.armed = False
                raise Refused("not now")

    plan, clock = Once(), ManualClock()
    blobs = FaultyBlobs(memory(), plan)
    driver = started(Count(), blobs, clock)
    epoch(driver, "ada")
    plan.armed = True
    with suppress(Refused):
        driver.close()
    plan.armed = False
    assert take_over(open_store(blobs, clock, MINUTE), "next").token == 2 and not clock.sleeps_s


def test_the_end_waits_for_the_epoch_that_runs_and_lets_no_other_begin(tmp_path):
    driver = started(Held(tmp_path), memory(), ManualClock())
    running = Thread(target=epoch, args=(driver, "ada"))
    running.start()
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    ends = [Thread(target=driver.close) for _ in range(2)]
    for end in ends:
        end.start()
    wait_for("the end to begin", lambda: driver._drain_lock._shut)
    late = Thread(target=epoch, args=(driver, "bob"))
    late.start()
    (tmp_path / "go").touch()
    for thread in (running, late, *ends):
        thread.join()
    head = driver.store.head
    assert (head.epoch, head.published, head.lease.expires_ms) == (1, 1, 0)


def test_the_end_gives_spark_the_time_to_note_its_last_batch(tmp_path):
    class Spark(ManualClock):
        """Notes the batch while others sleep."""

        def sleep_s(self, seconds: float) -> None:
            super().sleep_s(seconds)
            if len(self.sleeps_s) == 3:
                (tmp_path / "commits").mkdir()
                (tmp_path / "commits" / "0").touch()

    clock = Spark()
    driver = started(Count(), memory(), clock)
    driver._checkpoint = tmp_path
    driver.drain()
    assert not clock.sleeps_s, "there is nothing to note"
    driver.epochs.run(None, SourcePosition("query", 0), clock.now_ms(), 0)
    driver.drain()
    assert len(clock.sleeps_s) == 3
    driver.drain()
    (tmp_path / "commits" / "0").unlink()
    driver._listener.is_running = lambda: False
    driver.drain()
    assert len(clock.sleeps_s) == 3, "a query that has ended notes nothing more"
    driver.close()


def test_a_batch_that_is_turned_away_never_returns_as_if_it_were_processed():
    clock = ManualClock()
    driver = started(Count(), memory(), clock)
    driver.give_up()
    rows: Any = None
    with pytest.raises(Conflict, match="was to be stopped"):
        driver.on_batch(rows, 0)
    driver._listener.is_running = lambda: len(clock.sleeps_s) < 2000
    with pytest.raises(Interrupted, match=r"InterruptedException"):
        driver.on_batch(rows, 0)
    driver.close()


def test_nobody_gets_the_state_of_a_driver_in_an_epoch_longer_than_its_lease(tmp_path: Path):
    blobs, chosen = memory(), settings(lease_ms=300)
    driver = started(Held(tmp_path), blobs, SystemClock(), chosen)
    driver._listener.is_running = lambda: False  # ended, as far as Spark is concerned; timers still fire
    running = Thread(target=epoch, args=(driver, "ada"))
    running.start()
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    first_ms = driver.store.head.lease.expires_ms
    wait_for("more than the time of a lease", lambda: driver.store.head.lease.expires_ms - first_ms > chosen.lease_ms)
    with pytest.raises(LeaseHeld):
        take_over(open_store(blobs, SystemClock(), chosen), "next")
    (tmp_path / "go").touch()
    running.join()
    assert driver.store.head.epoch == 1
    driver.close()


def test_a_driver_whose_query_has_ended_does_not_keep_the_state_from_the_next():
    blobs, clock = memory(), ManualClock()
    driver = started(Count(), blobs, clock)
    driver._listener.is_running = lambda: False
    renewal = driver.epochs.writer._renewal
    assert renewal is not None
    clock.advance_ms(MINUTE.lease_ms // 2)
    renewal.beat()
    clock.advance_ms(MINUTE.lease_ms // 2)
    assert take_over(open_store(blobs, clock, MINUTE), "next").token == 2 and not clock.sleeps_s


def test_how_far_publishing_got_is_noted_when_no_epoch_comes():
    clock = ManualClock()
    driver = started(Count(), memory(), clock)
    epoch(driver, "ada")
    assert not driver.tick() and driver.store.head.published == 0, "it rides in the next epoch's edit if that comes soon"
    clock.advance_ms(MINUTE.lease_ms // 3)
    assert not driver.tick() and driver.store.head.published == 1
    position = driver.store.head.position
    clock.advance_ms(MINUTE.lease_ms // 3)
    assert not driver.tick() and driver.store.head.position == position
    driver.close()


class Failing(Plan):
    """Compactions that cannot store what they made, so many times."""

    def __init__(self, error: Callable[[], Exception], times: int) -> None:
        self._error, self._left = error, times
        self.epochs: list[int] = []
        self.now: Callable[[], int] = lambda: 0

    def before(self, op: Op) -> None:
        if op.method == "create" and "compact-" in op.name and self._left:
            self._left -= 1
            self.epochs.append(self.now())
            raise self._error()


def kept(plan: Failing) -> tuple[Driver, Maintenance]:
    blobs = FaultyBlobs(memory(), plan)
    keeper = Maintenance()
    chosen = settings(lease_ms=60_000, retry=type(MINUTE.retry)(attempts=1))
    driver = started(Count(), blobs, ManualClock(), chosen, keeper)
    plan.now = lambda: driver.store.head.epoch
    keeper.attach(driver, lambda: True, lambda: None)
    keeper.start()
    return driver, keeper


def end(driver: Driver, keeper: Maintenance) -> None:
    keeper.stop()
    driver.close()


def test_a_compaction_that_a_silent_tier_keeps_from_its_work_is_done_later():
    plan = Failing(lambda: Unavailable("no answer"), 3)
    driver, keeper = kept(plan)

    def warned() -> list[str]:
        epoch(driver, "ada")
        return driver.epochs.progress.epochs[-1].warnings

    found = wait_for("a warning", warned)[0]
    assert found.startswith("compaction could not be done, 1 tries so far, the next at epoch ") and found.endswith(": no answer")
    wait_for("compaction", lambda: not warned() and len(plan.epochs) == 3)
    first, second, third = plan.epochs
    assert second >= first + 2 and third >= second + 4
    assert len(driver.store.head.runs["count"]) < driver.store.head.epoch and keeper.failure is None
    end(driver, keeper)


def test_a_compaction_that_is_refused_is_seen_and_the_query_and_its_compaction_go_on():
    plan = Failing(lambda: Refused("no space"), 2)
    driver, keeper = kept(plan)
    found = wait_for("the failure", lambda: epoch(driver, "ada") or keeper.failure)
    assert isinstance(found, Refused) and keeper.ended_by is None
    before = driver.store.head.epoch
    epoch(driver, "ada")
    assert driver.store.head.epoch == before + 1
    wait_for("compaction", lambda: epoch(driver, "ada") or (len(plan.epochs) == 2 and keeper.failure is None))
    assert len(driver.store.head.runs["count"]) < driver.store.head.epoch
    end(driver, keeper)


def test_the_end_of_a_short_query_leaves_nothing_to_compact():
    driver, keeper = kept(Failing(lambda: Refused("no space"), 0))
    for _ in range(12):
        epoch(driver, "ada")
    keeper.stop()
    assert not TieredPolicy().propose(driver.store.head)
    driver.close()
