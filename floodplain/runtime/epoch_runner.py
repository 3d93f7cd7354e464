"""Epochs as transactions: run each step of the plan, commit once, publish. Knows an engine, not Spark."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput, Conflict
from floodplain.eventtime.times import NONE_MS, EpochTimes, known_ms, late_cutoff_ms
from floodplain.expressions.columns import check_there
from floodplain.operators.kernel.event_order import WAITING
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.reserved_columns import check_not_reserved
from floodplain.plan.changelog_checks import check_all_came, check_weight
from floodplain.plan.nodes import MAIN, Extend, Input, Keyed, Node, Outlet, Plan, Select, Side, Transform, Union, sources_of
from floodplain.runtime import dropped_rows
from floodplain.runtime.compatibility.inherited_output import check_unpublished, check_waiting, unpublished, vouched
from floodplain.runtime.compatibility.migration import NO_CHANGES, Migration, StartChanges, migrate
from floodplain.runtime.engine import Engine, Place
from floodplain.runtime.epoch_plan import Compiled, Steps, checks_of, derived
from floodplain.runtime.operator_binding import fitted_operator
from floodplain.runtime.watermark_clock import Timekeeper
from floodplain.state import tables
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.store.processing_time import Moment
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import conflict_before_damage
from floodplain.tiers import paths
from floodplain.tiers.redact import without_credentials
from floodplain.versions.log.commit import commit
from floodplain.versions.log.requirements import RequireLease
from floodplain.versions.records.assignment import checked_slots, even
from floodplain.versions.records.edit import AdvancePublished, Assignment, SetAssignment, SourcePosition, Update

KEPT_PROGRESS = 100


@dataclass
class EpochProgress:
    """What an epoch did."""

    epoch: int
    batch_id: int
    rows: int
    late: int
    dead: int
    """Rows and timers that became dead letters."""
    output_rows: int
    duration_ms: int
    watermark_ms: int | None
    """None as long as there is none."""
    slots: int
    late_by: dict[str, int] = field(default_factory=dict)
    """Operator → rows that came too late for it, if any did."""
    ignored_by: dict[str, int] = field(default_factory=dict)
    """Operator → rows that said nothing to it, if any did: of a pivot those of a kind that it does not list. ``input``:
    heartbeats that had other values, too, which are not processed."""
    early: int = 0
    """Rows of in-order operators that did not wait for the watermark, because no more could."""
    busy_ms: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Epochs:
    """Runs one epoch after the other on a state. Used by one thread at a time."""

    def __init__(self, place: Place, plan: Plan, engine: Engine, slots: int) -> None:
        self.store = place.store
        self.writer = place.writer
        self.progress: list[EpochProgress] = []
        self._place = place
        self._plan = plan
        self._engine = engine
        self._wanted_slots = checked_slots(slots, place.store.head.key_groups)
        self._empty: dict[str, Any] = {}
        self._compiled = Compiled(place, plan, engine)
        self.time = Timekeeper(place.writer, plan.watermark, engine)
        self._timers: list[tuple[tables.StateColumn, str, KeyedOperator]] = []
        self.front: Node | None = None
        """The step that rows of the pipeline's own input are computed up to when they come, if they do not come as they are."""
        self.concern: str | None = None
        """What is wrong beside the epochs: a warning in their progress."""
        self._published = 0
        """How far publishing got. It rides in the next edit, and staged files stay until then."""

    def rescale(self, slots: int) -> None:
        """Use this many slots from the next epoch on. No state moves."""
        self._wanted_slots = checked_slots(slots, self.store.head.key_groups)

    def prepare(self, empty: Mapping[str, Any], changes: StartChanges = NO_CHANGES) -> None:
        """Before the first epoch: publish what a driver that died had committed, clear up what it had not, and make of the state
        what the operators need.

        ``empty`` has the columns of each input and no rows. Raises before anything is written if a step does not fit its input
        or what is in the state.
        """
        if self._plan.watermark is not None:
            self._plan.watermark.check(self._engine.schema(empty[""]))
        self._empty = self.time.timed(empty, 0) or {}
        names = [operator.name for operator in self._plan.operators]
        migration = Migration(self.store.head, names, changes, without_credentials(self._place.location))
        self._compile(migration)
        self._check_inherited(migration)
        for outlet in self._plan.outlets:
            outlet.sink.check(self._compiled.schemas[outlet.staged_as])
        head = self.store.head
        for outlet in self._plan.outlets:
            outlet.sink.prepare(f"{head.store}-{outlet.name}", head.epoch, self._compiled.schemas[outlet.staged_as])
        self._compiled.checks.update(checks_of(self._plan, self._compiled.schemas))
        self.sweep_staged()  # before anything is written: the disk may be full of it
        self.publish()
        self._record_published()
        migrate(self.writer, migration)
        self.time.prepare(self.writer)
        self.sweep_staged()

    def _check_inherited(self, migration: Migration) -> None:
        """Raises if something in the state does not fit the pipeline."""
        outputs = {outlet.staged_as: self.schema_of(outlet) for outlet in self._plan.outlets}
        migration.check()
        with conflict_before_damage(self.store.history, [RequireLease(self.writer.token)]):
            check_unpublished(self.store.head, outputs, self.store.history.blobs)
        snapshot = Snapshot(migration.base, self.store.open_runs, self.store.history)
        check_waiting(snapshot, self._compiled.operators.values())

    def sweep_staged(self) -> None:
        """Delete what attempts that did not count have staged, up to the epoch before the last. Any thread may call it.

        What is not published yet, as far as the log tells, stays, and what a driver staged that has superseded this one.
        """
        head, blobs = self.store.head, self.store.history.blobs
        token, epoch = self.writer.token, head.epoch
        kept = head.outputs if head.published < epoch else ()
        found = [(paths.token_and_epoch_of(info.name), info.name) for info in blobs.list(paths.STAGED)]
        old = [name for author, name in found if author and (author[0] < token or author < (token, epoch))]
        blobs.delete([name for name in old if name not in kept])

    def _compile(self, migration: Migration) -> None:
        """All operators, and the columns of all outputs."""
        rows: dict[Node, Any] = {}
        for node in self._plan.nodes:
            match node:
                case Input(tag=tag):
                    rows[node] = self._empty[tag]
                    check_not_reserved(f"input {tag}".strip(), self._engine.schema(rows[node]).names)
                case Transform() | Select() | Extend() | Union():
                    rows[node] = self._derived(node, rows)
                case Side(parent=parent, output=output):
                    rows[node] = self._engine.empty(self._side_schema(parent.name, output))
                case Keyed():
                    fitted = fitted_operator(node, self._engine.schema(rows[node.parent]), self._plan)
                    operator = migration.bound(node, fitted)
                    sources = [self._compiled.operators[before.name] for before in sources_of(node.parent)]
                    check_all_came(operator, sources, migration.base)
                    self._compiled.operators[node.name] = operator
                    places = operator.tables.places
                    self._timers += [(places[name], name, operator) for name in (EVENT_TIMERS, PROCESSING_TIMERS)]
                    self._timers += [(places[WAITING], EVENT_TIMERS, operator)] if operator.in_order is not None else []
                    for output, schema in {MAIN: operator.output, **operator.sides}.items():
                        check_not_reserved(f"operator {node.name}", schema.names)
                        self._compiled.schemas[node.name, output] = schema
                    rows[node] = self._engine.empty(operator.output)
        for outlet in self._plan.outlets:
            self._compiled.schemas.setdefault(outlet.staged_as, self._engine.schema(rows[outlet.node]))

    def _derived(self, node: Transform | Select | Extend | Union, rows: Mapping[Node, Any]) -> Any:
        """What a step without state makes of no rows, checked."""
        if isinstance(node, Select):
            asked = next((f"operator {step.name}: " for step in self._plan.operators if step.parent is node), "")
            check_there(node.columns, self._engine.schema(rows[node.parent]), asked if node.chosen else "")
        made = derived(node, self._plan, self._engine, rows.__getitem__)
        if isinstance(node, Transform):
            check_not_reserved("transform", self._engine.schema(made).names)
            if node.changes:
                check_weight(self._engine.schema(made))
        return made

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Operator → how many rows it has left out since the state was made, and why: ``late`` or ``ignored``."""
        return dropped_rows.totals(self.store.head.counts)

    @property
    def operators(self) -> dict[str, KeyedOperator]:
        """By name. Requires: ``prepare`` was called."""
        return self._compiled.operators

    def schema_of(self, outlet: Outlet) -> pa.Schema:
        """The columns of what this outlet gets. Requires: ``prepare`` was called."""
        return self._compiled.schemas[outlet.staged_as]

    def _side_schema(self, operator: str, output: str) -> pa.Schema:
        sides = self._compiled.operators[operator].sides
        if output not in sides:
            raise BadInput(f"{operator} has no side output {output!r}; it has: {', '.join(sides) or 'none'}")
        return sides[output]

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def compiled(self) -> Compiled:
        """The operators bound to their inputs, and the columns of all outputs. Requires: ``prepare`` was called."""
        return self._compiled

    @property
    def location(self) -> str:
        return self._place.location

    @property
    def slots(self) -> int:
        """What the next epoch runs on, unless ``rescale`` says otherwise."""
        assignment = self.store.head.assignment
        return self._wanted_slots if assignment is None else assignment.slots

    def due(self, watermark_ms: int, now_ms: int) -> bool:
        """Whether a timer waits for no more than these times."""
        snapshot = self.store.snapshot()
        for place, kind, operator in self._timers:
            late_ms = late_cutoff_ms(watermark_ms, operator.lateness_ms, operator.lateness_before)
            until_ms = late_ms if kind == EVENT_TIMERS else now_ms
            if next(snapshot.table(place.table).scan(times=(-(1 << 63), until_ms + 1)), None) is not None:
                return True
        return False

    def moment(self, now_ms: int | None = None) -> Moment:
        """Processing time, at this time by the clock, as far as the store bears it out."""
        return self.writer.time.moment(now_ms)

    def tick(self, given_ms: int, now_ms: int) -> bool:
        """Time passes: an epoch without rows if timers are due; whether there was one.

        ``given_ms``: the watermark that Spark would give the next batch; 0 for none.
        """
        head, at = self.store.head, self.moment(now_ms)
        now_ms, watermark_ms = min(now_ms, at.now_ms), self.time.watermark_ms(given_ms, at)
        # Timers up to the watermark of the last epoch had their turn in it; what callbacks set for the past waits.
        moved = watermark_ms > head.watermarks.get(EVENT_TIME, NONE_MS)
        if self.due(watermark_ms if moved else NONE_MS, now_ms):
            self.run(None, None, now_ms, watermark_ms)
            return True
        if moved and self._follows_watermark:
            self.advance(now_ms, watermark_ms)
        self.note_published(now_ms)
        return False

    @property
    def _follows_watermark(self) -> bool:
        return any(operator.traits.follows_watermark for operator in self._compiled.operators.values())

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
        """An epoch in which nothing happens but that time, or the place in the input, moves on. No task runs."""
        self._publish_last()
        head, at = self.store.head, self.moment(timestamp_ms)
        done = head.outputs if self._published == head.epoch else ()
        published = [AdvancePublished(self._published)] if self._published > head.published else []
        watermarks = {EVENT_TIME: watermark_ms} if watermark_ms > NONE_MS else {}
        epoch = self.writer.epoch(at=at, watermarks={**self.time.before(at), **watermarks, **(moved or {})})
        epoch.commit([], source=position, also=published)
        self.store.history.blobs.delete(done)
        self.publish()

    def note_published(self, now_ms: int) -> None:
        """Once no epoch has come for a while: how far publishing got, lest the next driver repeat it if this one dies."""
        head = self.store.head
        if self._published > head.published and now_ms - head.epochs[-1].at_ms >= self.store.history.settings.lease_ms // 3:
            self._record_published()

    def close(self) -> None:
        """Let go of the state. Raises nothing if another driver has it by now."""
        with suppress(Conflict):
            self._record_published()
            head = self.store.history.refresh()
            RequireLease(self.writer.token).check(head)
            if head.published >= head.epoch:
                self.store.history.blobs.delete(head.outputs)
            self.writer.close()
        for outlet in self._plan.outlets:
            outlet.sink.close()

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
        """
        self._publish_last()
        clock = self.store.history.clock
        started = clock.monotonic_s()
        at = self.moment(timestamp_ms)
        before, now_ms = self.time.before(at), at.now_ms
        watermark_ms = self.time.watermark_ms(watermark_ms, at)
        times = EpochTimes(
            processing_ms=now_ms,
            late_ms=before.get(EVENT_TIME, NONE_MS),
            watermark_ms=watermark_ms if fire_ms is None else max(watermark_ms, fire_ms),
            ends=ends,
        )
        marked = {EVENT_TIME: watermark_ms} if watermark_ms > NONE_MS else {}
        epoch = self.writer.epoch(at=at, watermarks={**before, **marked})
        assignment, changes = self._assignment()
        done = self.store.head.outputs if self._published == self.store.head.epoch else ()
        if self._published > self.store.head.published:
            changes.append(AdvancePublished(self._published))
        front = None if inputs is None else self.front
        run = Steps(self._compiled, epoch, times, assignment, self.time.timed(inputs, now_ms) or self._empty, front)
        with conflict_before_damage(self.store.history, [RequireLease(self.writer.token)]):
            run.run()
        files = sorted((file for named in self._outlets() for file in run.files(named)), key=lambda file: file.name)
        outputs, sums = [file.name for file in files], [file.sum for file in files]
        moved = self.time.advance(epoch, at)
        states = [report.state for report in run.reports]
        run.ignored += Counter({dropped_rows.INPUT: self.time.ignored})
        counts = dropped_rows.counts(run.late, run.ignored)
        epoch.commit(states, source=position, watermarks=moved, outputs=outputs, sums=sums, counts=counts, also=changes)
        self.store.history.blobs.delete(sorted(run.staged().difference(outputs).union(done)))
        self.publish()
        self.progress.append(
            EpochProgress(
                epoch=epoch.number,
                batch_id=self.store.head.source.batch_id,
                rows=run.rows,
                late=sum(report.late for report in run.reports),
                dead=sum(report.dead for report in run.reports),
                output_rows=sum(file.rows for file in files),
                duration_ms=int((clock.monotonic_s() - started) * 1000),
                watermark_ms=known_ms(watermark_ms),
                slots=assignment.slots,
                late_by=dict(run.late),
                ignored_by=dict(run.ignored),
                early=sum(report.early for report in run.reports),
                busy_ms=[report.busy_ms for report in run.reports],
                warnings=sorted({warning for report in run.reports for warning in report.warnings} | self._concerns()),
            )
        )
        del self.progress[:-KEPT_PROGRESS]

    def _concerns(self) -> set[str]:
        return {concern for concern in (self.concern, self.writer.time.concern) if concern is not None}

    def _outlets(self) -> set[tuple[str, str]]:
        return {outlet.staged_as for outlet in self._plan.outlets}

    def _assignment(self) -> tuple[Assignment, list[Update]]:
        head = self.store.head
        if head.assignment is not None and head.assignment.slots == self._wanted_slots:
            return head.assignment, []
        version = head.assignment.version + 1 if head.assignment else 1
        assignment = even(self._wanted_slots, head.key_groups, version)
        return assignment, [SetAssignment(assignment)]

    def publish(self) -> None:
        """Publish the last committed epoch unless that was done, under the lease.

        Raises ``Fenced`` if another driver took over, also if that one has published it: Spark must not note the batch as ours.
        Raises ``Corrupt`` if a staged file of any sink is not what the edit vouches for, before a sink is given one.
        """
        head = self.store.history.refresh()
        RequireLease(self.writer.token).check(head)
        if max(head.published, self._published) >= head.epoch:
            return
        named, blobs = unpublished(head, self._outlets()), vouched(head, self.store.history.blobs)
        with conflict_before_damage(self.store.history, [RequireLease(self.writer.token)]):
            blobs.check_all()
            for outlet in self._plan.outlets:
                schema = self._compiled.schemas[outlet.staged_as]
                outlet.sink.publish(head.epoch, sorted(named[outlet.staged_as]), blobs, schema)
        self._published = head.epoch

    def _publish_last(self) -> None:
        """Before another epoch. The edit of an epoch names its own staged output only: what is not published by then is lost."""
        if max(self.store.head.published, self._published) < self.store.head.epoch:
            self.publish()

    def _record_published(self) -> None:
        if self._published > self.store.head.published:
            commit(self.store.history, [AdvancePublished(self._published)], token=self.writer.token)
