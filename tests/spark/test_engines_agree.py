"""Tasks and workers give the same, epoch by epoch. Workers shuffle nothing, stage nothing between operators, keep their slots."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import floodplain as fp
from floodplain.runtime.task import TaskReport
from floodplain.settings import RetentionSettings, StoreSettings
from floodplain.spark.runtime import Query
from floodplain.spark.session_conf import settings
from floodplain.spark.workers_engine import WorkersEngine
from floodplain.store.store import Store
from floodplain.workers.pieces import DISK, MEMORY
from tests.spark import journey
from tests.waiting import wait_for

pytestmark = pytest.mark.spark
EPOCHS = 2
SMALL = StoreSettings(lease_ms=5000, key_groups=64, epoch_bytes=4096, retention=RetentionSettings(newest=200))
SEVERAL_PARTITIONS = {"spark.sql.files.minPartitionNum": "3", "spark.sql.files.openCostInBytes": "1"}
WORKERS = 2


@dataclass
class Told:
    """What a run gave, by epoch."""

    outputs: dict[str, dict[int, list[str]]]
    tables: dict[int, dict[str, list[str]]]
    progress: list[tuple[Any, ...]]
    moved: list[int | None]
    tries: list[int]


@pytest.fixture(autouse=True)
def several_partitions(spark):
    with settings(spark, SEVERAL_PARTITIONS):
        yield


def rows_of(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def letters_of(table: Any) -> list[str]:
    """Without the time by the clock."""
    return rows_of(table.drop_columns(["at"]))


@pytest.fixture
def all_come_first(monkeypatch):
    """No epoch begins before all workers are there: else slots move as they come."""
    inner = WorkersEngine.start

    def start(self: Any, *args: Any) -> None:
        inner(self, *args)
        wait_for("all workers", lambda: len(self.pids) == WORKERS)

    monkeypatch.setattr(WorkersEngine, "start", start)


@pytest.fixture
def reports(monkeypatch):
    """Operator → the reports of its slots on workers."""
    told: dict[str, list[TaskReport]] = {}
    inner = WorkersEngine.run

    def run(self: Any, rows: Any, keys: Any, assignment: Any, job: Any, row_bytes: Any) -> list[TaskReport]:
        made = inner(self, rows, keys, assignment, job, row_bytes)
        told.setdefault(job.operator.name, []).extend(made)
        return made

    monkeypatch.setattr(WorkersEngine, "run", run)
    return told


def run(spark: Any, folder: Path, name: str, slots: int) -> Told:
    """Process what is there."""
    engine = fp.Workers(count=WORKERS) if name == "workers" else "tasks"
    query = journey.output(spark, folder).start(
        state=folder / name, slots=slots, settings=SMALL, engine=engine, trigger="availableNow"
    )
    query.await_termination()
    return told_of(query, folder / name)


def shuffled_bytes(spark: Any) -> int:
    """What all stages have written into shuffles so far."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    none = spark.sparkContext._gateway.new_array(spark._jvm.double, 0)
    empty = spark._jvm.java.util.ArrayList()
    stages = context.statusStore().stageList(None, False, False, none, empty)
    return sum(stages.apply(number).shuffleWriteBytes() for number in range(stages.size()))


def test_both_engines_give_the_same_in_every_epoch(spark, tmp_path, all_come_first, reports):
    """Also with other slots from a restart on. Rows within a partition come in their order, or the first operator fails."""
    for first, slots in ((0, 3), (EPOCHS, 4)):
        journey.write_input(tmp_path, EPOCHS, rows=100, first=first)
        tasks = run(spark, tmp_path, "tasks", slots)
        before = shuffled_bytes(spark)
        workers = run(spark, tmp_path, "workers", slots)
        assert shuffled_bytes(spark) == before, "no job of workers shuffles"
        assert workers.progress == tasks.progress and len(tasks.progress) >= EPOCHS
        for epoch, *_ in tasks.progress:
            assert workers.tables[epoch] == tasks.tables[epoch]
        assert workers.outputs == tasks.outputs
        assert all(workers.outputs[name] for name in ("by_count", "spent", "often", "windows"))
        assert workers.moved == [0] * len(workers.progress) and tasks.moved == [None] * len(tasks.progress)
        assert workers.tries == [1] * len(workers.progress)
    assert sum(each[-1]["journey"].dead for each in tasks.progress) > 0
    assert {output for report in reports["journey"] for output in report.kept} == {"main", "visits"}
    assert not any(report.outputs for report in reports["journey"]), "nothing is staged between operators"
    kept = [segment for report in reports["journey"] for piece in report.kept.values() for segment in piece.segments]
    assert {segment.file for segment in kept} == {MEMORY, DISK}, "beyond the budget rows are spilled"


def told_of(query: Query, state: Path) -> Told:
    store = Store.open(state)
    epochs = [progress.epoch for progress in query.progress]
    tables = {}
    for epoch in epochs:
        snapshot = store.at(epoch)
        tables[epoch] = {
            name: (letters_of if name.endswith("dead_letters") else rows_of)(snapshot.table(name).to_arrow())
            for name in snapshot.tables
        }
    outputs = {name: {epoch: rows_of(rows) for epoch, rows in sink._epochs.items()} for name, sink in query.sinks.items()}
    progress = [(each.epoch, each.rows, each.output_rows, each.slots, each.dropped_by) for each in query.progress]
    moved, tries = [each.moved_slots for each in query.progress], [each.tries for each in query.progress]
    return Told(outputs, tables, progress, moved, tries)
