"""Epochs as transactions: run each step of the plan, commit once, publish. Knows an engine, not Spark."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from floodplain.cost.report import CostReport, cost_of
from floodplain.elasticity.parallelism import Parallelism
from floodplain.errors import Conflict
from floodplain.eventtime.times import NONE_MS, EpochTimes, known_ms, late_cutoff_ms
from floodplain.operators.kernel.operator import DroppedRows, added_up
from floodplain.plan.nodes import Node, Plan
from floodplain.prices import Prices, prices_at
from floodplain.runtime import dropped_rows
from floodplain.runtime.binder import Binder, BoundPlan
from floodplain.runtime.compatibility.migration import NO_CHANGES, Migration, StartChanges, migrate
from floodplain.runtime.engine import MOST_TRIES, Engine, StateLocation, TryFailed
from floodplain.runtime.epoch_plan import EpochPlan
from floodplain.runtime.progress import EpochProgress, OperatorProgress, ProgressLog
from floodplain.runtime.publisher import Publisher
from floodplain.runtime.task import TaskReport
from floodplain.runtime.watermark_clock import WatermarkClock
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.durations import interval_s
from floodplain.state.tables import SEPARATOR
from floodplain.store.processing_time import Moment
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import conflict_before_damage
from floodplain.tier_use import COMMIT, UseCursor, tallied
from floodplain.tiers.redact import without_credentials
from floodplain.versions.log.commit import commit
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.log.requirements import RequireLease
from floodplain.versions.records.edit import SourcePosition

LOOK_S = 3.0
"""How often a query without data looks for requests in the log."""
_log = logging.getLogger(__name__)


class EpochRunner:
    """Runs one epoch after the other on a state, each to its commit, and has it published. Used by one thread at a time."""

    def __init__(
        self,
        place: StateLocation,
        plan: Plan,
        engine: Engine,
        slots: int | Mapping[str, int] | None,
        concern: Callable[[], str | None] = lambda: None,
        *,
        deferred: bool = False,
        default_slots: int = 1,
    ) -> None:
        """``slots``: of all operators, or of some by name; as in the last run where nothing is said, or ``default_slots``.
        ``concern`` tells what is wrong in the background, if anything: a warning in the progress of epochs. ``deferred``: a
        ``StoreUpkeep`` deletes what epochs leave behind, and writes manifest checkpoints, so that no epoch waits for it."""
        self.store = place.store
        self.writer = place.writer
        self.bound = BoundPlan(place, plan, engine)
        """Has operators and schemas once ``prepare`` was called."""
        self._deferred = deferred
        self.publisher = Publisher(place, plan.outlets, deferred=deferred)
        self.progress = ProgressLog(place.store)
        self.time = WatermarkClock(place.writer, plan.watermark, engine)
        self.parallelism = Parallelism(place.store.head, plan, slots, default_slots)
        self.front: Node | None = None
        """The step that rows of the pipeline's own input are computed up to when they come, if they do not come as they are."""
        self._concern = concern
        self._looked_s = -LOOK_S
        tally = place.store.counters.tally
        self._unrecorded, self._unshown = UseCursor(tally), UseCursor(tally)
        self._prices = prices_at(place.store.history.blobs.url, place.settings.prices)

    def rescale(self, slots: int | Mapping[str, int]) -> None:
        """Use this many slots from the next epoch on, for all operators or for some by name. No state moves."""
        self.parallelism.rescale(slots)

    @property
    def slots(self) -> int:
        """The most that an operator has in the next epoch, unless ``rescale`` says otherwise."""
        return self.parallelism.most_slots(self.store.head)

    def prepare(self, empty: Mapping[str, Any], changes: StartChanges = NO_CHANGES) -> None:
        """Before the first epoch: bind the operators, publish what a driver that died had committed, clear up what it had not,
        and migrate the state to what the operators need.

        ``empty`` has the columns of each input and no rows. Raises before anything is written if a step does not fit its input
        or what is in the state.
        """
        place, plan, engine = self.bound.place, self.bound.plan, self.bound.engine
        if plan.watermark is not None:
            plan.watermark.check(engine.schema(empty[""]))
        empty = self.time.timed(empty, 0) or {}
        names = [operator.name for operator in plan.operators]
        migration = Migration(self.store.head, names, changes, without_credentials(place.location))
        bound = Binder(place, plan, engine, migration).bind(empty)
        self.bound = replace(bound, checks=self.publisher.prepare(bound.schemas))
        self.publisher.sweep_staged()  # before anything is written: the disk may be full of it
        self.publisher.publish()
        self.publisher.record()
        migrate(self.writer, migration)
        self.parallelism.adopt(self.store.head, plan, changes.rename)
        self.time.prepare(self.writer)
        self.publisher.sweep_staged()

    def moment(self, now_ms: int | None = None) -> Moment:
        """Processing time, at this time by the clock, as far as the store bears it out."""
        return self.writer.time.moment(now_ms)

    def due(self, watermark_ms: int, now_ms: int) -> bool:
        """Whether a timer waits for no more than these times."""
        snapshot = Snapshot(self.store.head, self.store.open_runs, self.store.history)  # only we set timers
        for timers in self.bound.timers:
            late_ms = late_cutoff_ms(watermark_ms, timers.operator.lateness_ms, timers.operator.lateness_before)
            until_ms = late_ms if timers.by_event_time else now_ms
            if next(snapshot.stored(timers.table).scan(times=(-(1 << 63), until_ms + 1)), None) is not None:
                return True
        return False

    def tick(self, given_ms: int, now_ms: int) -> bool:
        """Time passes: an epoch without rows if timers are due; whether there was one.

        ``given_ms``: the watermark that Spark would give the next batch; 0 for none.
        """
        self.answer_requests()
        head, at = self.store.head, self.moment(now_ms)
        now_ms, watermark_ms = min(now_ms, at.now_ms), self.time.watermark_ms(given_ms, at)
        # Timers up to the watermark of the last epoch had their turn in it; what callbacks set for the past waits.
        moved = watermark_ms > head.watermarks.get(EVENT_TIME, NONE_MS)
        if self.due(watermark_ms if moved else NONE_MS, now_ms):
            self.run(None, None, now_ms, watermark_ms)
            return True
        if moved and self.bound.follows_watermark:
            self.advance(now_ms, watermark_ms)
        self.publisher.record_when_idle(now_ms)
        return False

    def answer_requests(self) -> None:
        """Do what the log asks for, between two epochs. An epoch does so by itself; this is for when none comes.

        Looks for new requests every few seconds, which costs a request to the store.
        """
        clock = self.store.history.clock
        if clock.monotonic_s() - self._looked_s >= LOOK_S:
            self.store.history.refresh()
            self._looked_s = clock.monotonic_s()
        if self.store.head.rescale is not None:
            planned = self.parallelism.next(self.store.head)
            commit(self.store.history, planned.changes, token=self.writer.token)
            self.parallelism.committed(planned)

    def heartbeat(self, source: str | None, at_ms: int) -> None:
        """All events of this source (of all, if none is named) up to this time have come: noted in an epoch of its own."""
        at = self.moment()
        promised = self.time.promised(source, at_ms, at)
        self.advance(at.now_ms, self.store.head.watermarks.get(EVENT_TIME, NONE_MS), promised)

    def advance(
        self,
        timestamp_ms: int,
        watermark_ms: int,
        moved: Mapping[str, int] | None = None,
        position: SourcePosition | None = None,
    ) -> None:
        """An epoch in which nothing happens but that time, or the input position, moves on. No task runs."""
        self.publisher.publish_pending()
        at = self.moment(timestamp_ms)
        published, files = self.publisher.unrecorded(), self.publisher.published_files()
        watermarks = {**self.time.before(at), **_event_time(watermark_ms), **(moved or {})}
        with tallied(self.store.counters.tally, COMMIT):
            epoch = self.writer.epoch(at=at, watermarks=watermarks)
            epoch.commit([], source=position, also=published, used=self._unrecorded.new(), checkpoint=False)
            self._unrecorded.take()
        self.publisher.publish_committed()
        self._clear_up(files)

    def run(
        self,
        inputs: Mapping[str, Any] | None,
        position: SourcePosition | None,
        timestamp_ms: int,
        watermark_ms: int,
        fire_ms: int | None = None,
        *,
        ends: bool = False,
    ) -> None:
        """One epoch: the rows of ``inputs``, or none, at these times; committed and published.

        ``fire_ms``: event-time timers up to here fire even though the watermark is not there yet. ``ends``: all others will.
        An epoch is tried, not patched: if what runs it is lost, all of it is done again under other names.
        """
        for tried in range(1, MOST_TRIES + 1):
            try:
                with tallied(self.store.counters.tally, COMMIT):
                    self._try(inputs, position, timestamp_ms, watermark_ms, fire_ms, ends=ends, tries=tried)
                return
            except TryFailed as failed:
                _log.warning("epoch %s, try %s of %s: %s", self.store.head.epoch + 1, tried, MOST_TRIES, failed)
                if tried == MOST_TRIES:
                    raise failed.error from failed

    def _try(
        self,
        inputs: Mapping[str, Any] | None,
        position: SourcePosition | None,
        timestamp_ms: int,
        watermark_ms: int,
        fire_ms: int | None,
        *,
        ends: bool,
        tries: int,
    ) -> None:
        self.publisher.publish_pending()
        clock = self.store.history.clock
        started_s = clock.monotonic_s()
        at = self.moment(timestamp_ms)
        before = self.time.before(at)
        watermark_ms = self.time.watermark_ms(watermark_ms, at)
        times = EpochTimes(
            processing_ms=at.now_ms,
            late_ms=before.get(EVENT_TIME, NONE_MS),
            watermark_ms=watermark_ms if fire_ms is None else max(watermark_ms, fire_ms),
            ends=ends,
        )
        epoch = self.writer.epoch(at=at, watermarks={**before, **_event_time(watermark_ms)})
        slots = self.parallelism.next(self.store.head)
        done = self.publisher.published_files()
        also = [*slots.changes, *self.publisher.unrecorded()]
        timed = self.time.timed(inputs, at.now_ms) or self.bound.empty
        run = EpochPlan(self.bound, epoch, times, slots.plans, timed, None if inputs is None else self.front)
        with conflict_before_damage(self.store.history, [RequireLease(self.writer.token)]):
            run.run()
        self.store.counters.tally.add_all(run.used)
        files = run.outputs(self.publisher.staged_as)
        outputs, sums = [file.name for file in files], [file.sum for file in files]
        inline = {file.name: file.data for file in files if file.data}
        moved = self.time.advance(epoch, at)
        states = [report.state for report in run.reports]
        run.dropped[dropped_rows.INPUT] = DroppedRows(ignored=self.time.ignored)
        counts = dropped_rows.counts(run.dropped)
        commits_s = clock.monotonic_s()
        new = self._unrecorded.new()
        epoch.commit(
            states,
            source=position,
            watermarks=moved,
            outputs=outputs,
            sums=sums,
            inline=inline,
            counts=counts,
            used=new,
            also=also,
            checkpoint=False,
        )
        self._unrecorded.take()
        self.parallelism.committed(slots)
        for name, reports in run.reports_of.items():
            self.parallelism.load.add(name, [report.group_rows for report in reports])
        commit_ms = int((clock.monotonic_s() - commits_s) * 1000)
        operators = {name: self._operator_progress(name, reports) for name, reports in run.reports_of.items()}
        self.bound.engine.end_epoch()
        self.publisher.publish_committed(inline)
        self._clear_up(sorted(run.staged().difference(outputs).union(done)))
        duration_ms = int((clock.monotonic_s() - started_s) * 1000)
        used = self._unshown.new()
        self._unshown.take()
        self.progress.add(
            EpochProgress(
                epoch=run.number,
                batch_id=self.store.head.source.batch_id,
                rows=run.rows,
                output_rows=sum(file.rows for file in files),
                duration_ms=duration_ms,
                watermark_ms=known_ms(watermark_ms),
                slots=self.slots,
                dropped_by=run.dropped,
                busy_ms=[report.busy_ms for report in run.reports],
                warnings=sorted({warning for report in run.reports for warning in report.warnings} | self._concerns()),
                processing_ms=at.now_ms,
                has_input=inputs is not None,
                commit_ms=commit_ms,
                operators=operators,
                tries=tries,
                moved_slots=self.bound.engine.moved_slots,
                used=used,
                cost=self._prices.of_uses(used),
            )
        )

    def _clear_up(self, discarded: Iterable[str]) -> None:
        """What can wait until an epoch is published."""
        self.publisher.discard(discarded)
        if not self._deferred:
            maybe_checkpoint(self.store.history)

    def _operator_progress(self, name: str, reports: Sequence[TaskReport]) -> OperatorProgress:
        """Requires: the epoch is committed."""
        runs = [run for table, runs in self.store.head.runs.items() if table.partition(SEPARATOR)[0] == name for run in runs]
        return OperatorProgress(
            slots=len(reports),
            busy_ms=sum(report.busy_ms for report in reports),
            measures=added_up(report.measures for report in reports),
            state_rows=sum(run.rows for run in runs),
            state_bytes=sum(run.length for run in runs),
        )

    def _concerns(self) -> set[str]:
        all_of = (self._concern(), self.writer.time.concern, self.bound.engine.concern())
        return {concern for concern in all_of if concern is not None}

    def cost(self, prices: Prices | None = None, every: str | timedelta | None = None) -> CostReport:
        """``prices``: instead of those of the settings. ``every``: as if an epoch came so often."""
        place = self.bound.place
        return cost_of(
            place.store, place.location, prices=prices, interval_s=None if every is None else interval_s(every, "every")
        )

    def close(self) -> None:
        """Let go of the state, whatever else fails. Raises nothing if another driver has it by now."""
        with ExitStack() as steps:
            steps.callback(self.publisher.close_sinks)
            steps.callback(self.writer.close)
            with suppress(Conflict):
                self.publisher.finish()


def _event_time(watermark_ms: int) -> dict[str, int]:
    """As epochs record it; nothing as long as there is none."""
    return {EVENT_TIME: watermark_ms} if watermark_ms > NONE_MS else {}
