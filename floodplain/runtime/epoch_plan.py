"""The steps of one epoch, one job per stateful operator."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from floodplain.errors import Conflict
from floodplain.eventtime.times import EpochTimes
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.task_state import put_task_values, task_values_at
from floodplain.plan.nodes import MAIN, Extend, Input, Keyed, Node, Plan, Select, Side, Transform, Union, some_of
from floodplain.plan.single_scan import one_pass
from floodplain.runtime.engine import Engine, Place
from floodplain.runtime.preaggregation_policy import Measured, combiner_of
from floodplain.runtime.staging import Staged, StagedFile
from floodplain.runtime.task import Job, StageJob, TaskReport
from floodplain.runtime.task_store import Work
from floodplain.sinks.row_checks import Check
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.epoch import Epoch
from floodplain.versions.records.assignment import groups_of
from floodplain.versions.records.edit import Assignment


@dataclass(frozen=True)
class Compiled:
    """A plan on its state, with what is known once the columns of its input are."""

    place: Place
    plan: Plan
    engine: Engine
    operators: dict[str, KeyedOperator] = field(default_factory=dict)
    schemas: dict[tuple[str, str], pa.Schema] = field(default_factory=dict)
    """The columns of each output of each operator, and of what other steps stage."""
    checks: dict[tuple[str, str], tuple[Check, ...]] = field(default_factory=dict)
    """What sinks ask of the rows that are staged for them."""
    measured: dict[str, Measured] = field(default_factory=dict)
    """Operator → what the last epoch that had rows has shown."""


def derived(node: Transform | Select | Extend | Union, plan: Plan, engine: Engine, rows: Callable[[Node], Any]) -> Any:
    """What a step without state makes of the rows of those before it."""
    match node:
        case Transform(parent=parent, function=function):
            return engine.transform(rows(parent), function)
        case Select(parent=parent, only=only):
            return engine.select(rows(parent), plan.columns(node), only)
        case Extend(parent=parent, columns=columns, where=where):
            return engine.extend(rows(parent), columns, where)
        case Union(members=members):
            found = one_pass(node)
            return (
                engine.union([rows(member) for member in members]) if found is None else engine.parted(rows(found.parent), found)
            )


def checks_of(plan: Plan, schemas: Mapping[tuple[str, str], pa.Schema]) -> dict[tuple[str, str], tuple[Check, ...]]:
    """What sinks ask of the rows that tasks stage for them. Requires: they are prepared."""
    checks: dict[tuple[str, str], tuple[Check, ...]] = {}
    for outlet in plan.outlets:
        fitness = outlet.sink.fitness(schemas[outlet.staged_as])
        if fitness is not None:
            sink = f"the sink {outlet.name}" + (f" ({outlet.sink.target})" if outlet.sink.target else "")
            checks[outlet.staged_as] = (*checks.get(outlet.staged_as, ()), Check(sink, fitness))
    return checks


def together_next(compiled: Compiled) -> dict[str, bool]:
    """Operator → whether rows would be put together before the exchange now; where nothing else speaks against it."""
    return {
        name: combiner_of(operator.process, (), compiled.measured.get(name)) is not None
        for name, operator in compiled.operators.items()
    }


class Steps:
    """The steps of one epoch, one job per stateful operator."""

    def __init__(
        self,
        compiled: Compiled,
        epoch: Epoch,
        times: EpochTimes,
        assignment: Assignment,
        inputs: Mapping[str, Any],
        front: Node | None = None,
    ) -> None:
        """``front``: the step that the pipeline's own input was computed up to, if it does not come as it is."""
        self.reports: list[TaskReport] = []
        self.rows = 0
        self.late: Counter[str] = Counter()
        """Operator → rows that came too late for it, if any did."""
        self.ignored: Counter[str] = Counter()
        """Operator → rows that said nothing to it, if any did."""
        self._compiled, self._epoch, self._times, self._assignment, self._inputs = compiled, epoch, times, assignment, inputs
        place, self._plan, self._engine = compiled.place, compiled.plan, compiled.engine
        self._head = place.store.head
        self._snapshot = Snapshot(self._head, place.store.open_runs, place.store.history)
        self._made: dict[Node, Any] = {} if front is None else {front: inputs[""]}
        self._files: dict[tuple[str, str], list[StagedFile]] = {}
        ticket = msgspec.msgpack.encode(epoch.ticket)
        self._work = Work(place.location, place.settings, dict(place.options), ticket, place.blobs)

    def files(self, named: tuple[str, str]) -> list[StagedFile]:
        return self._files.get(named, [])

    def staged(self) -> set[str]:
        return {file.name for files in self._files.values() for file in files}

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
            self._made[node] = some or derived(node, self._plan, self._engine, self._frame)
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
        return Staged(tuple(self.files((operator, output))), self._compiled.schemas[operator, output])

    def _run_operator(self, step: Keyed) -> None:
        rows = self._rows(step.parent)
        named, _ = some_of(step.parent)
        if named is not None and self._plan.split_by(*named) != step.keys:
            rows = self._frame(step.parent)
        fitted, outputs = self._compiled.operators[step.name], self._outputs(step)
        operator = replace(fitted, process=fitted.traits.begun())
        last = self._compiled.measured.get(step.name)
        combiner = None if isinstance(rows, Staged) or step.in_order else combiner_of(operator.process, list(outputs), last)
        if combiner is not None:
            rows = self._engine.combined(rows, combiner, self._assignment.slots)
        before = task_values_at(self._snapshot, operator, self._assignment.slots)
        job = Job(
            work=self._work,
            manifest=msgspec.msgpack.encode(self._head),
            operator=operator,
            times=self._times,
            slots=groups_of(self._assignment, self._head.key_groups),
            rows=(rows.schema if isinstance(rows, Staged) else self._engine.schema(rows)).serialize().to_pybytes(),
            outputs=outputs,
            task_values=tuple(before.of(slot) for slot in range(self._assignment.slots)),
            broadcast=self._broadcast(step),
            staged=rows if isinstance(rows, Staged) else None,
            checks={output: self._checks(step.name, output) for output in outputs if self._checks(step.name, output)},
        )
        reports = self._engine.run(rows, step.keys, self._assignment, job, None if last is None else last.row_bytes)
        if sorted(report.slot for report in reports) != list(range(self._assignment.slots)):
            raise Conflict(
                f"operator {step.name}: {len(reports)} tasks ran for {self._assignment.slots} slots; the epoch is given up"
            )
        if any(report.rows for report in reports):
            self._compiled.measured[step.name] = Measured.of(reports, combiner, last)
        put_task_values(self._epoch, operator, before, {report.slot: report.task_values for report in reports})
        if self._plan.reads_input(step):
            self.rows += sum(report.rows for report in reports)
        self._keep(step.name, reports)

    def _checks(self, name: str, output: str) -> tuple[Check, ...]:
        return self._compiled.checks.get((name, output), ())

    def _broadcast(self, step: Keyed) -> bytes:
        """Broadcast rows are few: they travel with the job."""
        rows = pa.table({}) if step.broadcast is None else self._engine.collect(self._frame(step.broadcast))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return sink.getvalue().to_pybytes()

    def _outputs(self, step: Keyed) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for output in (MAIN, *self._compiled.operators[step.name].sides):
            if any(self._plan.readers(step.name, output)):
                found[output] = self._plan.split_by(step.name, output)
        return found

    def _stage(self, name: str, node: Node) -> None:
        rows = self._frame(node)
        job = StageJob(self._work, name, self._engine.schema(rows).serialize().to_pybytes(), self._checks(name, MAIN))
        reports = self._engine.stage(rows, job)
        if not self._plan.operators:
            self.rows += sum(report.rows for report in reports)
        self._keep(name, reports)

    def _keep(self, name: str, reports: list[TaskReport]) -> None:
        self.reports += reports
        self.late += Counter({name: sum(report.late for report in reports)})
        self.ignored += Counter({name: sum(report.ignored for report in reports)})
        for report in reports:
            for output, file in report.outputs.items():
                self._files.setdefault((name, output), []).append(file)
