"""A task on its own: what it reports is stored, and what could not be stored is not reported."""

import gc
import sys
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from floodplain.bench.workloads.counting import Count
from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Refused
from floodplain.eventtime.times import EpochTimes
from floodplain.metrics import Counters
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.plan.nodes import MAIN
from floodplain.runtime import task_store
from floodplain.runtime.task import Job, TaskReport, run_task
from floodplain.runtime.task_store import Work
from floodplain.settings import StoreSettings
from floodplain.spark import task_entry
from floodplain.state.tables import define
from floodplain.store.store import Store
from floodplain.store.write.epoch import Epoch
from floodplain.tiers import paths
from floodplain.tiers.blobs import Writable
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.log.history import History
from floodplain.versions.records.assignment import even, groups_of

ROWS = pa.table({"key": ["a", "b", "a"], "amount": [1, 2, 3]})
SETTINGS = StoreSettings(key_groups=4, inline_bytes=0)


class Picky(MemoryBlobs):
    """Refuses names that start with this."""

    refused = "nothing"

    def create(self, name: str, data: Writable) -> None:
        if name.startswith(self.refused):
            raise Refused(f"there is no room for {name}")
        super().create(name, data)


class Scene:
    """A store with one operator, and its next epoch. ``apart``: the process opens the store itself, as workers of Spark do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: StoreSettings = SETTINGS, *, apart: bool = True) -> None:
        self.blobs = Picky("memory://worker", Counters())
        history = History.create(
            self.blobs, settings.key_groups, settings=settings, clock=ManualClock(0), randomness=SeededRandomness(7)
        )
        self.store = Store(history, Counters())
        self._settings = settings
        self._apart = apart
        monkeypatch.setattr(task_store, "open_blobs", lambda *_, **__: self.blobs)
        monkeypatch.setattr(task_store, "_opened", {})
        self._writer = self.store.writer("test")
        self._operator = KeyedOperator("count", Count(), {"key": pa.string()})
        define(self._writer, self._operator.tables)

    def run(self, rows: pa.Table) -> tuple[Epoch, TaskReport]:
        epoch = self._writer.epoch(now_ms=1)
        nothing = pa.BufferOutputStream()
        with pa.ipc.new_stream(nothing, pa.schema([])):
            pass
        job = Job(
            work=Work(
                "memory://worker", self._settings, {}, msgspec.msgpack.encode(epoch.ticket), None if self._apart else self.blobs
            ),
            manifest=self.store.head,
            operator=self._operator,
            times=EpochTimes(1),
            slots=groups_of(even(1, self._settings.key_groups, 1), self._settings.key_groups),
            rows=rows.schema.serialize().to_pybytes(),
            outputs={MAIN: ()},
            task_values={},
            broadcast=nothing.getvalue().to_pybytes(),
        )
        return epoch, run_task(job, 0, "0-0", rows.to_batches())


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("epoch_bytes", [1, 1 << 20])
def test_what_a_task_reports_is_stored(monkeypatch: pytest.MonkeyPatch, epoch_bytes: int, apart: bool) -> None:
    """In several buckets too, each with runs of its own."""
    scene = Scene(monkeypatch, replace(SETTINGS, epoch_bytes=epoch_bytes), apart=apart)
    epoch, report = scene.run(ROWS)
    stored = {info.name for info in scene.blobs.list("")}
    assert report.state.runs and {run.object for run in report.state.runs} <= stored
    assert {file.name for file in report.outputs.values()} <= stored
    epoch.commit([report.state])
    found = scene.store.snapshot().table("count").to_arrow().select(["key", "n", "total"]).sort_by("key").to_pylist()
    assert found == [{"key": "a", "n": 2, "total": 4}, {"key": "b", "n": 1, "total": 2}]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("refused", [paths.RUNS, paths.STAGED])
def test_a_task_fails_if_its_runs_or_its_output_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch, refused: str, apart: bool
) -> None:
    scene = Scene(monkeypatch, apart=apart)
    scene.blobs.refused = refused
    with pytest.raises(Refused, match=f"no room for {refused}"):
        scene.run(ROWS)


def test_what_a_worker_has_loaded_is_not_looked_through_after_each_task(monkeypatch):
    """Of what comes later everything is, unless more is loaded."""
    monkeypatch.setattr(task_entry, "_modules_seen", 0)
    before = gc.get_freeze_count()
    try:
        task_entry.freeze_modules()
        left_out = gc.get_freeze_count()
        assert left_out - before > len(sys.modules)
        kept = [[] for _ in range(10_000)]
        # What was left out can still go, and other threads of this process let go of some.
        most = left_out + len(kept) // 2
        task_entry.freeze_modules()
        assert gc.get_freeze_count() < most
        monkeypatch.setitem(sys.modules, "loaded_later", object())
        task_entry.freeze_modules()
        assert gc.get_freeze_count() > most
    finally:
        gc.unfreeze()
