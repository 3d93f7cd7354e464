"""The engine of the test kits: runs the steps of a plan on Arrow tables, in this process."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, FloodplainError, UserError
from floodplain.eventtime.measure import observe, timed
from floodplain.eventtime.watermarks import SourceObservation, WatermarkRule
from floodplain.keys import hash_columns, normalize_keys
from floodplain.operators.kernel.traits import Combiner
from floodplain.pipeline.stream import SOURCE
from floodplain.plan.nodes import Node, Plan, Rest
from floodplain.plan.single_scan import Branch, OnePass
from floodplain.runtime.binder import BoundPlan
from floodplain.runtime.live.slots import ControlJob, SlotReport, look
from floodplain.runtime.resources import Resources
from floodplain.runtime.staging import Staged, read_staged
from floodplain.runtime.task import Job, StageJob, TaskReport, run_task, stage_task
from floodplain.runtime.task_store import Work
from floodplain.store.write.task_writer import Ticket
from floodplain.testing.local_expressions import evaluated, holds, rest
from floodplain.versions.records.assignment import slot_of_each_group, slots_of
from floodplain.versions.records.edit import Assignment, RunRef


class LocalEngine:
    """Runs the tasks of an epoch one after the other in this process."""

    keeps_rows = False
    moved_slots: int | None = None
    description = ""

    def __init__(self, transforms: Sequence[Callable[[pa.Table], pa.Table]], plan: Plan) -> None:
        self._functions: dict[int, Callable[[pa.Table], pa.Table]] = {}
        self.learn(transforms, plan)
        self._attempts = 0
        self.resources = Resources()
        """Resources that process functions opened. All tasks of one engine share them, as tasks of one process do."""

    def learn(self, transforms: Sequence[Callable[[pa.Table], pa.Table]], plan: Plan) -> None:
        """What to run for each ``transform`` step of a plan."""
        steps = [node.function for node in plan.nodes if hasattr(node, "function")]
        if len(steps) != len(transforms):
            raise BadInput(
                f"the pipeline has {len(steps)} transform steps, and the kit got {len(transforms)} Arrow functions: pass "
                "one for each, in order, as transforms=[…]"
            )
        self._functions |= dict(zip(map(id, steps), transforms, strict=True))

    def concern(self) -> str | None:
        return None

    def input_ways(self) -> Mapping[str, str]:
        return {}

    def start(self, bound: BoundPlan) -> None:
        """Called once operators are bound, before the first epoch."""

    def successor(self, bound: BoundPlan, front: Node | None) -> Callable[[], None]:  # noqa: ARG002
        """Its tasks get their operator with their job."""
        return lambda: None

    def prefetch(self, runs: Sequence[RunRef]) -> None:
        """Its tasks share the cache of the process that compacts."""

    def give_up(self) -> None:
        """Its tasks run in the thread that asks for them, so there is nothing to wait for."""

    def close(self) -> None:
        """The processes of tasks end."""
        self.resources.close()

    def schema(self, rows: pa.Table) -> pa.Schema:
        return rows.schema

    def empty(self, schema: pa.Schema) -> pa.Table:
        return schema.empty_table()

    def collect(self, rows: pa.Table) -> pa.Table:
        return rows

    def transform(self, rows: pa.Table, function: Callable[[Any], Any]) -> pa.Table:
        on_arrow = self._functions[id(function)]
        try:
            return on_arrow(rows)
        except FloodplainError:
            raise
        except Exception as error:
            raise UserError.in_function("transform", on_arrow, error) from error

    def select(self, rows: pa.Table, columns: Sequence[tuple[str, Any]], only: tuple[str, str] | None) -> pa.Table:
        if only is not None:
            rows = rows.filter(pc.field(only[0]) == only[1])
        selected = {
            name: rest(expression.but, rows) if isinstance(expression, Rest) else evaluated(expression, rows)
            for name, expression in columns
        }
        return pa.table({name: column for name, column in selected.items() if column is not None})

    def extend(self, rows: pa.Table, columns: Sequence[tuple[str, Any]], where: Any) -> pa.Table:
        if where is not None:
            rows = rows.filter(holds(where, rows))
        computed = {name: evaluated(expression, rows) for name, expression in columns}
        return pa.table({name: rows.column(name) for name in rows.column_names} | computed)

    def combined(self, rows: pa.Table, combiner: Combiner, slots: int) -> pa.Table:
        """Rows combined as if ``slots`` tasks had each read a share of them."""
        ends = [len(rows) * number // slots for number in range(slots + 1)]
        return pa.concat_tables([combiner(rows.slice(start, end - start)) for start, end in pairwise(ends)])

    def union(self, members: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(members, promote_options="permissive")

    def parted(self, rows: pa.Table, parts: OnePass) -> pa.Table:
        branches = [self._branch(rows.filter(pc.field(parts.column) == branch.value), branch) for branch in parts.parts]
        return self.union(branches)

    @staticmethod
    def _branch(rows: pa.Table, branch: Branch) -> pa.Table:
        for condition in branch.where:
            rows = rows.filter(holds(condition, rows))
        selected = {}
        for name, made in branch.columns:
            fields = pa.table(
                {field: evaluated(value, rows) for field, value in ([(name, made)] if isinstance(made, str) else made)}
            )
            selected[name] = fields.column(0) if isinstance(made, str) else rest((), fields)
        return pa.table(selected)

    def read(self, staged: Staged, place: Work) -> pa.Table:
        assert place.blobs is not None
        return read_staged(staged, place.blobs)

    def run(
        self,
        rows: pa.Table | Staged,
        keys: Sequence[str],
        assignments: Mapping[str, Assignment],
        job: Job,
        row_bytes: float | None,  # noqa: ARG002
    ) -> list[TaskReport]:
        count = assignments[job.operator.name].slots
        if isinstance(rows, Staged):
            return [self._task(job, slot, ()) for slot in range(count)]
        slot_of_group = slot_of_each_group(job.slots, msgspec.msgpack.decode(job.work.ticket, type=Ticket).key_groups)
        slots = slots_of(hash_columns(normalize_keys([rows.column(key) for key in keys])), slot_of_group)
        order = np.argsort(slots, kind="stable")
        ordered, ends = rows.take(pa.array(order)), np.searchsorted(slots[order], np.arange(count + 1)).tolist()
        by_slot = [ordered.slice(start, end - start) for start, end in pairwise(ends)]
        return [self._task(job, slot, of_slot.to_batches()) for slot, of_slot in enumerate(by_slot)]

    def _task(self, job: Job, slot: int, batches: Sequence[pa.RecordBatch]) -> TaskReport:
        """With a copy of its own: what a task keeps in the operator reaches no other."""
        operator = replace(job.operator, process=copy(job.operator.process))
        return run_task(replace(job, operator=operator), slot, self._attempt(slot), batches, self.resources)

    def look(self, job: ControlJob) -> list[SlotReport]:
        """Runs a control operation in all slots."""
        return [look(job, slot) for slot in range(len(job.slots))]

    def stage(self, rows: pa.Table, job: StageJob) -> list[TaskReport]:
        return [stage_task(job, 0, self._attempt(0), rows.to_batches())]

    def end_epoch(self) -> None:
        """Nothing is kept."""

    def measure(
        self, rows: pa.Table, rule: WatermarkRule, now_ms: int
    ) -> tuple[pa.Table, Callable[[], dict[str, SourceObservation]]]:
        return timed(rows, rule, now_ms), partial(observe, rows, rule, SOURCE)

    def _attempt(self, slot: int) -> str:
        """A name for files of one task attempt."""
        self._attempts += 1
        return f"{slot}-{self._attempts}"
