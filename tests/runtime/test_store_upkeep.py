"""Compaction and garbage collection beside a query: what is left stays bounded, and neither ever gives up."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadInput, Conflict, Corrupt, Refused, Unavailable
from floodplain.runtime.store_upkeep import COLLECT_EVERY, MOST_LEVELS, MOST_PAUSE_S, StoreUpkeep
from floodplain.settings import CompactionSettings, RetentionSettings, RetrySettings, StoreSettings
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store, Writer
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.fences import SEGMENT
from floodplain.versions.log.renewal import Renewal
from floodplain.versions.records.edit import RunRef
from tests.faults import FaultyBlobs, Op, Plan
from tests.processes import Count
from tests.spark.test_driver import epoch, started
from tests.store.world import memory, open_store, settings

TABLE = value_table("t", {"k": pa.int64()}, {"v": pa.int64()})
EPOCH_MS = 10_000
FEW = settings(retention=RetentionSettings(newest=3, every_ms=()))
LADDER = StoreSettings(key_groups=4, retry=FEW.retry)


def left(blobs: Blobs) -> Counter[str]:
    return Counter(info.name.partition("/")[0] for info in blobs.list(""))


def retained(chosen: StoreSettings, for_ms: int) -> int:
    """Epochs at most, of a state that is so old."""
    steps = sum(min(age_ms, for_ms) // step_ms + 2 for age_ms, step_ms in chosen.retention.every_ms)
    return chosen.retention.newest + steps


@pytest.mark.parametrize("chosen", [FEW, LADDER], ids=["few", "ladder"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_short_queries_again_and_again_leave_a_bounded_number_of_objects(chosen: StoreSettings, killed: bool) -> None:
    blobs, clock, rounds = memory(), ManualClock(), 60
    found = []
    for _ in range(rounds):
        driver = started(Count(), blobs, clock, chosen)
        driver.epochs.writer.rest()
        upkeep = StoreUpkeep(driver.store, driver.epochs.publisher.delete_discarded)
        for number in range(5):
            clock.advance_ms(EPOCH_MS)
            epoch(driver, "ada", "bob")
            if number == 0 or not killed:
                upkeep.round()
        if not killed:
            driver.close()
        found.append(left(blobs))
    most = {kind: max(each[kind] for each in found) for kind in ("log", "manifest", "runs", "staged", "pins", "probe")}
    kept = retained(chosen, rounds * 5 * EPOCH_MS)
    per_query = 15
    assert most["log"] <= SEGMENT + 2 * COLLECT_EVERY + 2 * per_query
    assert most["manifest"] <= kept + 5
    # Of the epochs retained, of those since the last collection, and what their compactions made.
    assert most["runs"] <= 2 * (kept + COLLECT_EVERY + per_query)
    assert most["staged"] <= 2 * 5 and not most["pins"] and not most["probe"]
    assert found[-1].total() < driver.store.head.position + SEGMENT // 2, "fewer than there were epochs and leases"


def idle(chosen: StoreSettings) -> tuple[FaultyBlobs, ManualClock, Writer]:
    blobs, clock = FaultyBlobs(memory()), ManualClock()
    writer = open_store(blobs, clock, chosen).writer("w")
    writer.define(TABLE)
    for number in range(3):
        writer.put("t", pa.table({"k": [number], "v": [number]}))
    return blobs, clock, writer


@pytest.mark.parametrize("chosen", [FEW, LADDER], ids=["few", "ladder"])
def test_a_day_of_idleness_leaves_no_more_than_an_hour_does(chosen: StoreSettings) -> None:
    blobs, clock, writer = idle(chosen)
    history = writer.store.history
    renewal = Renewal(history, writer.token, lambda: True, lambda error: None)
    upkeep = StoreUpkeep(writer.store, lambda: None)
    began, most = history.head.position, Counter[str]()
    blobs.ops.clear()
    for _ in range(24 * 60 * 60 * 1000 // EPOCH_MS):
        clock.advance_ms(EPOCH_MS + 1)
        renewal.beat()
        upkeep.round()
        if history.head.position % 16 == 0:
            most |= left(blobs.inner)
    renewed = history.head.position - began
    assert renewed >= 8_000
    assert most["log"] <= SEGMENT + 2 * COLLECT_EVERY + 16 and most["runs"] <= 3
    assert most["manifest"] <= 3 + 5 + SEGMENT // chosen.checkpoint_every
    assert sum(info.size_bytes for info in blobs.inner.list("")) < 400_000
    assert len([op for op in blobs.ops if op.method != "delete"]) <= 4 * renewed
    assert upkeep.concern is None
    assert open_store(blobs.inner, clock, chosen).snapshot().table("t").count() == 3


class Failing(Plan):
    """Of what is done to names with this in them, so many times."""

    def __init__(self, method: str, part: str, error: Callable[[], Exception]) -> None:
        self.method, self.part, self.error = method, part, error
        self.on, self.failed = False, 0

    def before(self, op: Op) -> None:
        if self.on and op.method == self.method and self.part in op.name:
            self.failed += 1
            raise self.error()


ERRORS: dict[str, Callable[[], Exception]] = {
    "refused": lambda: Refused("no space"),
    "silent": lambda: Unavailable("no answer"),
    "damaged": lambda: Corrupt("runs/1", "this", "that"),
    "lost a race": lambda: Conflict("replaced"),
    "a bug": lambda: ZeroDivisionError("division by zero"),
    "bad input": lambda: BadInput("no"),
}
PASSING = ("silent", "lost a race")


def failing(plan: Plan) -> tuple[Store, Callable[[], object], StoreUpkeep, ManualClock]:
    clock, once = ManualClock(), RetrySettings(attempts=1)
    blobs = FaultyBlobs(memory(), plan)
    writer = open_store(blobs, clock, replace(FEW, retry=once)).writer("w")
    writer.define(TABLE)

    def put() -> None:
        clock.advance_ms(EPOCH_MS)
        writer.put("t", pa.table({"k": range(9), "v": range(9)}))

    return writer.store, put, StoreUpkeep(writer.store, lambda: None), clock


@pytest.mark.parametrize("kind", sorted(ERRORS.keys() - {"lost a race"}))
def test_a_compaction_that_fails_is_tried_again_and_garbage_is_collected_meanwhile(kind: str) -> None:
    plan = Failing("create", "compact-", ERRORS[kind])
    plan.on = True
    store, put, upkeep, _ = failing(plan)
    for _ in range(3 * COLLECT_EVERY):
        put()
        upkeep.round()
    assert store.head.horizon > COLLECT_EVERY and left(store.history.blobs)["log"] < 3 * COLLECT_EVERY
    assert 3 <= plan.failed <= 20, "it is put off for longer each time"
    assert upkeep.concern is not None and upkeep.concern.startswith("compaction could not be done, ")
    assert (upkeep.failure is None) == (kind in PASSING)
    plan.on = False
    for _ in range(COLLECT_EVERY):
        put()
        upkeep.round()
    assert upkeep.concern is None and upkeep.failure is None
    assert len(store.head.runs["t"]) < 12


@pytest.mark.parametrize("kind", ERRORS)
def test_a_collection_that_fails_is_tried_again_and_runs_are_compacted_meanwhile(kind: str) -> None:
    plan = Failing("list", "", ERRORS[kind])
    store, put, upkeep, _ = failing(plan)
    plan.on = True
    for _ in range(2 * COLLECT_EVERY):
        put()
        upkeep.round()
    assert plan.failed and len(store.head.runs["t"]) < 12
    assert upkeep.concern is not None and upkeep.concern.startswith("garbage collection could not be done, ")
    assert (upkeep.failure is None) == (kind in PASSING)
    plan.on = False
    for _ in range(COLLECT_EVERY):
        put()
        upkeep.round()
    assert upkeep.concern is None and upkeep.failure is None
    assert left(store.history.blobs)["log"] <= 3 * COLLECT_EVERY


def test_what_failed_is_tried_again_though_no_epoch_comes() -> None:
    plan = Failing("create", "compact-", ERRORS["refused"])
    plan.on = True
    store, put, upkeep, clock = failing(plan)
    for _ in range(8):
        put()
        upkeep.round()
    before, failed = store.head.epoch, plan.failed
    for _ in range(3):
        upkeep.round()
    assert plan.failed == failed, "not at once"
    plan.on = False
    clock.advance_ms(int(MOST_PAUSE_S) * 1000)
    upkeep.round()
    assert store.head.epoch == before and len(store.head.runs["t"]) < 8 and upkeep.failure is None


def upkept(announce: Callable[[Sequence[RunRef]], object], **compaction: object) -> tuple[Writer, StoreUpkeep, ManualClock]:
    clock = ManualClock()
    writer = open_store(memory(), clock, replace(FEW, compaction=CompactionSettings(**compaction))).writer("w")
    writer.define(TABLE)
    return writer, StoreUpkeep(writer.store, lambda: None, announce), clock


def test_those_that_read_a_compacted_run_are_told_of_it_before_it_is_committed() -> None:
    told = list[tuple[bool, str]]()

    def announce(runs: Sequence[RunRef]) -> None:
        told.extend((run in writer.store.history.refresh().runs["t"], run.object) for run in runs)

    writer, upkeep, _ = upkept(announce)
    for number in range(8):
        writer.put("t", pa.table({"k": [number], "v": [number]}))
        upkeep.round()
    named = {run.object for run in writer.store.head.runs["t"]}
    assert told and not any(committed for committed, _ in told)
    assert {name for _, name in told} & named
    told.clear()
    for number in range(8):
        writer.put("t", pa.table({"k": [number], "v": [number]}))
    upkeep.round(stopped=lambda: True)
    assert not told and len(writer.store.head.runs["t"]) < 8, "at the end nobody reads it any more"


def test_a_query_that_does_not_compact_says_when_nobody_does() -> None:
    writer, upkeep, _ = upkept(lambda runs: None, in_query=False)
    for number in range(MOST_LEVELS + 1):
        assert upkeep.concern is None
        writer.put("t", pa.table({"k": [number], "v": [number]}))
        upkeep.round()
    assert len(writer.store.head.runs["t"]) == MOST_LEVELS + 1
    assert upkeep.concern is not None and "table t has 33 levels of runs" in upkeep.concern
    list(writer.store.compact())
    upkeep.round()
    assert upkeep.concern is None


def test_a_query_keeps_to_its_budget_until_it_ends() -> None:
    writer, upkeep, clock = upkept(lambda runs: None, budget="1 kB/s")
    for number in range(8):
        writer.put("t", pa.table({"k": [number], "v": [number]}))
    began_s = clock.monotonic_s()
    upkeep.round(stopped=lambda: True)
    assert clock.monotonic_s() == began_s and len(writer.store.head.runs["t"]) < 8
    for number in range(8):
        writer.put("t", pa.table({"k": [number], "v": [number]}))
    moved_bytes = sum(run.length for run in writer.store.head.runs["t"])
    upkeep.round()
    assert clock.monotonic_s() - began_s > moved_bytes / 1000 / 2
