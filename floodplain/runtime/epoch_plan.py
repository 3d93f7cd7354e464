"""The steps of one epoch, one job per stateful operator."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from floodplain.errors import Conflict
from floodplain.eventtime.times import EpochTimes
from floodplain.operators.kernel.operator import DroppedRows, total_dropped
from floodplain.operators.kernel.task_state import put_task_values, task_values_at
from floodplain.plan.nodes import MAIN, Extend, Input, Keyed, Node, Outlet, Plan, Select, Side, Transform, Union, parents, some_of
from floodplain.runtime.binder import BoundPlan
from floodplain.runtime.engine import apply_stateless
from floodplain.runtime.pieces import Piece
from floodplain.runtime.preaggregation_policy import Measured, combiner_of
from floodplain.runtime.staging import Staged, StagedFile, fitted_to_edit, merged_small, stored
from floodplain.runtime.task import Job, Reader, StageJob, TaskReport
from floodplain.runtime.task_store import Work
from floodplain.sinks.row_checks import SinkCheck
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.epoch import Epoch
from floodplain.tier_use import Uses, uses_sum
from floodplain.versions.records.assignment import groups_of, same_map
from floodplain.versions.records.edit import Assignment, GroupRanges


class EpochPlan:
    """The steps of one epoch, one job per stateful operator."""

    def __init__(
        self,
        bound: BoundPlan,
        epoch: Epoch,
        times: EpochTimes,
        assignments: Mapping[str, Assignment],
        inputs: Mapping[str, Any],
        front: Node | None = None,
    ) -> None:
        """``assignments``: operator → its slots. ``front``: the step that the pipeline's own input was computed up to, if it does
        not come as it is."""
        self.reports: list[TaskReport] = []
        self.rows = 0
        self.dropped: dict[str, DroppedRows] = {}
        """By operator."""
        self.reports_of: dict[str, list[TaskReport]] = {}
        """Of the tasks of each stateful operator."""
        self.used: Uses = {}
        """What tasks asked tiers for, by operator, or by output where there is none."""
        self._bound, self._epoch, self._times, self._assignments, self._inputs = bound, epoch, times, assignments, inputs
        place, self._plan, self._engine = bound.place, bound.plan, bound.engine
        self._head = place.store.head
        self._snapshot = Snapshot(self._head, place.store.open_runs, place.store.history)
        self._made: dict[Node, Any] = {} if front is None else {front: inputs[""]}
        self._files: dict[tuple[str, str], list[StagedFile]] = {}
        self._pieces: dict[tuple[str, str], list[Piece]] = {}
        self._slots: dict[str, tuple[GroupRanges, ...]] = {}
        ticket = msgspec.msgpack.encode(epoch.ticket)
        self._work = Work(place.location, place.settings, dict(place.options), ticket, place.blobs)

    @property
    def number(self) -> int:
        """The epoch's."""
        return self._epoch.number

    def files(self, named: tuple[str, str]) -> list[StagedFile]:
        return self._files.get(named, [])

    def outputs(self, staged_as: Iterable[tuple[str, str]]) -> list[StagedFile]:
        """What sinks are to publish, by name: all that the edit cannot hold is stored."""
        files = [file for named in staged_as for file in self.files(named)]
        return sorted(fitted_to_edit(files, self._bound.place.store.history), key=lambda file: file.name)

    def staged(self) -> set[str]:
        """What is stored of the epoch's output, but for that of ``outputs``."""
        return {file.name for files in self._files.values() for file in files if not file.data}

    def run(self) -> None:
        for node in self._plan.nodes:
            match node:
                case Input(tag=tag):
                    self._made.setdefault(node, self._inputs[tag])
                case Side(parent=parent, output=output):
                    self._made[node] = self._staged(parent.name, output)
                case Keyed():
                    self._run_operator(node)
                    self._made[node] = self._staged(node.name, MAIN)
        for outlet in self._plan.outlets:
            if not isinstance(outlet.node, Keyed | Side):
                self._stage(outlet.name, outlet.node)

    def _rows(self, node: Node) -> Any:
        """What the step gives: staged rows as such, else a frame, which is made when it is first asked for."""
        if node not in self._made:
            assert isinstance(node, Transform | Select | Extend | Union)
            some = self._some_of(node) if isinstance(node, Extend) else None
            self._made[node] = some or apply_stateless(node, self._plan, self._engine, self._frame)
        return self._made[node]

    def _frame(self, node: Node) -> Any:
        rows = self._rows(node)
        return self._engine.read(rows, self._work) if isinstance(rows, Staged) else rows

    def _some_of(self, node: Extend) -> Staged | None:
        """Staged rows with conditions that their readers can check."""
        named, conditions = some_of(node)
        whole = None if named is None else self._staged(*named)
        if whole is None or not all(condition.fits(whole.schema) for condition in conditions):
            return None
        return replace(whole, where=conditions)

    def _staged(self, operator: str, output: str) -> Staged:
        named = operator, output
        return Staged(tuple(self.files(named)), self._bound.schemas[named], pieces=tuple(self._pieces.get(named, ())))

    def _run_operator(self, step: Keyed) -> None:
        rows = self._rows(step.parent)
        named, _ = some_of(step.parent)
        if named is not None and not reads_in_slots(self._plan, named, step, self._assignments):
            rows = self._frame(step.parent)
        fitted, outputs = self._bound.operators[step.name], self._outputs(step)
        slots = self._assignments[step.name].slots
        operator = replace(fitted, process=fitted.traits.for_epoch())
        last = self._bound.measured.get(step.name)
        combiner = None if isinstance(rows, Staged) or step.in_order else combiner_of(operator.process, list(outputs), last)
        if combiner is not None:
            rows = self._engine.combined(rows, combiner, slots)
        before = task_values_at(self._snapshot, operator, slots)
        job = Job(
            work=self._work,
            manifest=self._head,
            operator=operator,
            times=self._times,
            slots=self._groups_of(step.name),
            rows=(rows.schema if isinstance(rows, Staged) else self._engine.schema(rows)).serialize().to_pybytes(),
            outputs=outputs,
            task_values={slot: before.of(slot) for slot in range(slots)} if before.values else {},
            broadcast=self._broadcast(step),
            staged=rows if isinstance(rows, Staged) else None,
            checks={output: self._checks(step.name, output) for output in outputs if self._checks(step.name, output)},
            kept=tuple(output for output in outputs if self._is_kept(step.name, output)),
            readers=self._readers(step.name, outputs),
        )
        reports = self._engine.run(rows, step.keys, self._assignments, job, None if last is None else last.row_bytes)
        if sorted(report.slot for report in reports) != list(range(slots)):
            raise Conflict(f"operator {step.name}: {len(reports)} tasks ran for {slots} slots; the epoch is given up")
        if any(report.rows for report in reports):
            self._bound.measured[step.name] = Measured.of(reports, combiner, last)
        put_task_values(self._epoch, operator, before, {report.slot: report.task_values for report in reports})
        if self._plan.reads_input(step):
            self.rows += sum(report.rows for report in reports)
        self.reports_of[step.name] = reports
        self._keep(step.name, reports)

    def _checks(self, name: str, output: str) -> tuple[SinkCheck, ...]:
        return self._bound.checks.get((name, output), ())

    def _broadcast(self, step: Keyed) -> bytes:
        """Broadcast rows are few: they travel with the job."""
        rows = pa.table({}) if step.broadcast is None else self._engine.collect(self._frame(step.broadcast))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return sink.getvalue().to_pybytes()

    def _outputs(self, step: Keyed) -> dict[str, tuple[str, ...]]:
        key_columns: dict[str, tuple[str, ...]] = {}
        for output in (MAIN, *self._bound.operators[step.name].sides):
            if any(self._plan.readers(step.name, output)):
                key_columns[output] = self._plan.split_by(step.name, output)
        return key_columns

    def _readers(self, name: str, outputs: Iterable[str]) -> dict[str, Reader]:
        readers = {output: self._plan.split_for(name, output) for output in outputs}
        return {output: Reader(by.name, self._groups_of(by.name)) for output, by in readers.items() if by is not None}

    def _groups_of(self, operator: str) -> tuple[GroupRanges, ...]:
        if operator not in self._slots:
            self._slots[operator] = groups_of(self._assignments[operator], self._head.key_groups)
        return self._slots[operator]

    def _is_kept(self, operator: str, output: str) -> bool:
        """Whether only operators read this output, in the slots that it is split by, and the engine can keep it for them."""
        named = operator, output
        if not self._engine.keeps_rows:
            return False
        return read_directly(self._plan, named, self._bound.schemas[named], self._assignments)

    def _stage(self, name: str, node: Node) -> None:
        rows = self._frame(node)
        job = StageJob(self._work, name, self._engine.schema(rows).serialize().to_pybytes(), self._checks(name, MAIN))
        reports = self._engine.stage(rows, job)
        if not self._plan.operators:
            self.rows += sum(report.rows for report in reports)
        self._keep(name, reports)

    def _keep(self, name: str, reports: list[TaskReport]) -> None:
        self.reports += reports
        self.dropped[name] = total_dropped(report.dropped for report in reports)
        for report in reports:
            self.used = uses_sum(self.used, {name: report.tiers})
            for output, file in report.outputs.items():
                self._files.setdefault((name, output), []).append(file)
            for output, piece in report.kept.items():
                self._pieces.setdefault((name, output), []).append(piece)
        for named in [named for named in self._files if named[0] == name]:
            files = merged_small(self._files[named], self._epoch.ticket)
            if any(not isinstance(reader, Outlet) for reader in self._plan.readers(*named)):
                files = stored(files, self._bound.place.store.history)
            self._files[named] = files


def reads_in_slots(plan: Plan, named: tuple[str, str], reader: Keyed, assignments: Mapping[str, Assignment]) -> bool:
    """Whether an output is split by the keys and the slots of this reader. ``assignments``: empty if slots are not known."""
    by = plan.split_for(*named)
    if by is None or by.keys != reader.keys:
        return False
    return not assignments or same_map(assignments[by.name], assignments[reader.name])


def read_directly(plan: Plan, named: tuple[str, str], schema: pa.Schema, assignments: Mapping[str, Assignment]) -> bool:
    """Whether all readers of an output are operators with the keys and slots that it is split by, at most behind conditions that
    tasks can check. ``assignments``: as of ``reads_in_slots``."""
    keys = plan.split_by(*named)
    pending: list[Any] = list(plan.readers(*named))
    while pending:
        reader = pending.pop()
        match reader:
            case Keyed() if reads_in_slots(plan, named, reader, assignments):
                continue
            case Extend() if some_of(reader)[0] == named and all(each.fits(schema) for each in some_of(reader)[1]):
                pending += [node for node in plan.nodes if reader in parents(node)]
                pending += [outlet for outlet in plan.outlets if outlet.node is reader]
            case _:
                return False
    return bool(keys)
