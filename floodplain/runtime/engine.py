"""What epochs are given: an engine that runs their steps, and the place of their state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from floodplain.errors import FloodplainError
from floodplain.eventtime.watermarks import SourceObservation, WatermarkRule
from floodplain.operators.kernel.traits import Combiner
from floodplain.plan.nodes import Extend, Node, Plan, Select, Transform, Union
from floodplain.plan.single_scan import OnePass, one_pass
from floodplain.runtime.staging import Staged
from floodplain.runtime.task import Job, StageJob, TaskReport
from floodplain.runtime.task_store import Work
from floodplain.settings import StoreSettings
from floodplain.store.store import Store, Writer
from floodplain.tiers.blobs import Blobs
from floodplain.versions.records.edit import Assignment, RunRef

if TYPE_CHECKING:
    from floodplain.runtime.binder import BoundPlan

MOST_TRIES = 4
"""How often an epoch is tried if what runs it is lost."""


class TryFailed(Exception):
    """What runs the epoch was lost, or did not answer, so this try is given up. ``error`` is what the last one ends with."""

    def __init__(self, error: FloodplainError) -> None:
        super().__init__(str(error))
        self.error = error


class Engine(Protocol):
    """Runs the steps of a plan: on Spark, or in the process itself for tests. ``rows`` are of the engine's own kind of table.

    A job may raise ``TryFailed``: then the whole epoch is tried anew, under other names.
    """

    keeps_rows: bool
    """Whether it keeps rows for the next operator in memory, where no sink and no stateless step reads them."""
    moved_slots: int | None
    """How many slots ran on another worker in this epoch than in the one before, with the same assignment. None where slots have
    no workers."""

    @property
    def description(self) -> str:
        """What ``explain`` says of it; empty for nothing."""

    def concern(self) -> str | None:
        """What is wrong with what runs the steps, as a warning in the progress of epochs. None if all is well."""

    def input_ways(self) -> Mapping[str, str]:
        """Which way the rows of each input take to workers, and why: by tag, the pipeline's own has the empty one. None where no
        workers stay."""

    def schema(self, rows: Any) -> pa.Schema: ...
    def empty(self, schema: pa.Schema) -> Any: ...
    def transform(self, rows: Any, function: Any) -> Any: ...
    def select(self, rows: Any, columns: Sequence[tuple[str, Any]], only: tuple[str, str] | None) -> Any: ...
    def extend(self, rows: Any, columns: Sequence[tuple[str, Any]], where: Any) -> Any: ...
    def combined(self, rows: Any, combiner: Combiner, slots: int) -> Any:
        """Rows combined before the shuffle to ``slots`` slots."""

    def union(self, members: Sequence[Any]) -> Any: ...
    def parted(self, rows: Any, parts: OnePass) -> Any: ...
    def read(self, staged: Staged, place: Work) -> Any: ...
    def run(
        self,
        rows: Any | Staged,
        keys: Sequence[str],
        assignments: Mapping[str, Assignment],
        job: Job,
        row_bytes: float | None,
    ) -> list[TaskReport]:
        """One report per slot. ``assignments``: of all operators. ``row_bytes``: what a row had in the last epoch, if known."""

    def stage(self, rows: Any, job: StageJob) -> list[TaskReport]: ...
    def collect(self, rows: Any) -> pa.Table: ...
    def end_epoch(self) -> None:
        """The epoch is committed: nothing of it is asked for any more."""

    def successor(self, bound: "BoundPlan", front: Node | None) -> Callable[[], None]:
        """Get ready to run another plan, whose main input comes computed up to ``front``, and return what switches to it: a call
        that does not fail. Raises ``BadInput`` if it cannot run the plan."""

    def prefetch(self, runs: Sequence[RunRef]) -> None:
        """These runs are about to take the place of others: those that will read them fetch them now, so that no epoch waits for
        it. Returns when they have, or when it takes too long. For another thread than the one that runs epochs."""

    def give_up(self) -> None:
        """How the running epoch ends does not matter any more: wait for nothing that runs it. For any thread."""

    def close(self) -> None:
        """After the last epoch: let go of what it holds. May be called again."""

    def measure(self, rows: Any, rule: WatermarkRule, now_ms: int) -> tuple[Any, Callable[[], Mapping[str, SourceObservation]]]:
        """The rows for the operators, and a function that returns what was observed, to be called once a job has read them."""


@dataclass(frozen=True)
class StateLocation:
    """The state that a pipeline runs on, opened and leased, and how its tasks open it."""

    store: Store
    writer: Writer
    location: str = field(repr=False)
    settings: StoreSettings
    options: Mapping[str, str] = field(repr=False)
    blobs: Blobs | None = None
    """Where tasks run in the driver's process: what they read and write through."""


def apply_stateless(node: Transform | Select | Extend | Union, plan: Plan, engine: Engine, rows: Callable[[Node], Any]) -> Any:
    """What a step without state makes of the rows of the steps upstream of it."""
    match node:
        case Transform(parent=parent, function=function):
            return engine.transform(rows(parent), function)
        case Select(parent=parent, only=only):
            return engine.select(rows(parent), plan.columns(node), only)
        case Extend(parent=parent, columns=columns, where=where):
            return engine.extend(rows(parent), columns, where)
        case Union(members=members):
            scan = one_pass(node)
            if scan is None:
                return engine.union([rows(member) for member in members])
            return engine.parted(rows(scan.parent), scan)
