"""Several at once: writers, compactions, collections. Nothing is lost, nothing comes back to life, and one writer wins."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Conflict, Fenced
from floodplain.settings import RetentionSettings
from floodplain.store.compaction.compactor import compact
from floodplain.store.compaction.policy import Proposal, TieredPolicy, levels
from floodplain.store.rows.definition import Column, list_table, map_table, value_table
from floodplain.store.store import Store, Writer
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema
from tests.store import racers, world
from tests.store.racers import rows

SUMS = value_table("t", {"user": pa.string()}, {"n": Column(pa.int64(), default=0, merge="sum"), "who": pa.string()})
ENDING = value_table("t", {"user": pa.string()}, {"n": Column(pa.int64(), default=0, merge="sum")}, ttl_ms=100)
ENDING_COLUMN = value_table("t", {"user": pa.string()}, {"n": Column(pa.int64(), default=7, merge="sum", ttl_ms=100)})
NEWEST = RetentionSettings(newest=1, every_ms=())


class Stage:
    """A store in memory with one table, one writer, and a clock."""

    def __init__(self, schema: TableSchema = SUMS, **settings: Any) -> None:
        self.blobs, self.clock, self.settings = world.memory("mapped"), ManualClock(), world.settings(**settings)
        self.writer = world.force_writer(self.open(), "a")
        self.writer.define(schema)

    def open(self) -> Store:
        return world.open_store(self.blobs, self.clock, self.settings, log_segment=1)

    def epoch(self, step_ms: int = 0, **deltas: pa.Table) -> None:
        self.clock.advance_ms(step_ms)
        epoch = self.writer.epoch()
        for op, given in deltas.items():
            getattr(epoch, op)("t", given)
        epoch.commit()

    def proposal(self, first: int, count: int) -> tuple[Proposal, Manifest]:
        """To merge ``count`` levels from the ``first`` newest on, in all key groups."""
        manifest = self.writer.store.history.refresh()
        everywhere = ((0, manifest.key_groups),)
        chosen = levels(manifest, "t", everywhere)[first : first + count]
        return Proposal("t", everywhere, tuple(run for level in chosen for run in level), 1), manifest

    def compact(self, first: int, count: int) -> None:
        self.carry_out(*self.proposal(first, count))

    def carry_out(self, proposal: Proposal, manifest: Manifest) -> None:
        store = self.open()
        compact(store.history, store.open_runs, proposal, manifest)

    def runs(self) -> int:
        return len(self.open().head.runs["t"])

    def contents(self) -> list[dict[str, Any]]:
        return sorted(self.open().snapshot().table("t").to_arrow().to_pylist(), key=str)


def one(**row: Any) -> pa.Table:
    return rows(**{name: [value] for name, value in row.items()})


# --- Compactions and epochs


def test_a_compaction_that_commits_after_later_epochs_is_still_older() -> None:
    stage = Stage()
    stage.epoch(put=one(user="a", n=1, who="old"))
    stage.epoch(put=one(user="b", n=1, who="old"))
    late = stage.proposal(0, 2)
    stage.epoch(put=one(user="a", n=5, who="new"))
    stage.epoch(delete=one(user="b"))
    stage.epoch(merge=one(user="a", n=2))
    stage.carry_out(*late)
    assert stage.runs() == 4
    assert stage.contents() == [{"user": "a", "n": 7, "who": "new"}]


def test_a_compaction_of_older_runs_is_as_recent_as_they_were() -> None:
    stage = Stage()
    for n in (1, 2, 3):
        stage.epoch(put=one(user="a", n=n))
    stage.compact(1, 2)
    assert [(run.low, run.high) for run in stage.open().head.runs["t"]] == [(3, 3), (1, 2)]
    assert stage.contents() == [{"user": "a", "n": 3, "who": None}]


def test_of_two_compactions_of_the_same_runs_one_is_dropped() -> None:
    stage = Stage()
    for number in range(4):
        stage.epoch(merge=one(user="a", n=1), put=one(user=f"b{number}", n=number))
    expected = stage.contents()
    first, second, beside = stage.proposal(0, 3), stage.proposal(1, 3), stage.proposal(3, 1)
    stage.carry_out(*first)
    with pytest.raises(Conflict, match="replaced"):
        stage.carry_out(*second)
    stage.carry_out(*beside)
    assert stage.contents() == expected
    stage.writer.collect_garbage()
    assert world.run_objects(stage.blobs) == world.named_objects(stage.open())


def test_compactions_of_different_key_groups_of_the_same_runs_both_count() -> None:
    stage = Stage(key_groups=16)
    for number in range(4):
        stage.epoch(put=rows(user=[f"u{key}" for key in range(40)], n=[number] * 40))
    expected = stage.contents()
    proposal, manifest = stage.proposal(0, 4)
    stage.carry_out(Proposal("t", ((0, 8),), proposal.runs, 1), manifest)
    with pytest.raises(Conflict, match="no longer counts"):
        stage.carry_out(Proposal("t", ((4, 12),), proposal.runs, 1), manifest)
    stage.carry_out(Proposal("t", ((8, 16),), proposal.runs, 1), manifest)
    assert stage.contents() == expected
    assert stage.runs() == 2


def test_a_compaction_whose_runs_were_replaced_and_collected_is_dropped_not_damage() -> None:
    stage = Stage(retention=NEWEST)
    for number in range(3):
        stage.epoch(put=one(user="a", n=number))
    late = stage.proposal(0, 2)
    list(stage.open().compact(full=True))
    stage.epoch(put=one(user="a", n=9))
    stage.writer.collect_garbage()
    with pytest.raises(Conflict):
        stage.carry_out(*late)
    assert stage.contents() == [{"user": "a", "n": 9, "who": None}]


def test_runs_of_one_epoch_are_merged_together_or_not_at_all() -> None:
    """Two tasks wrote the second epoch: a small run, and a large one that is like the older run in size.

    If only those two were merged, the result would end with the same epoch as the small run and share a key group with it.
    """
    stage = Stage(key_groups=4)
    users = ["a", "b", "c"]

    def given(numbers: list[int], n: int, text: str) -> pa.Table:
        columns = rows(user=[users[i] for i in numbers], n=[n] * len(numbers), who=[text] * len(numbers))
        return columns.append_column("_hash", pa.array([i << 62 for i in numbers], pa.uint64()))

    stage.epoch(put=given([0, 1, 2], 1, "x" * 500))
    epoch = stage.writer.epoch()
    tasks = [epoch.task("op", str(number)) for number in range(2)]
    tasks[0].write("t", given([1], 2, ""))
    tasks[1].write("t", given([2], 2, "x" * 5000))
    epoch.commit([task.finish() for task in tasks])
    assert [row["n"] for row in stage.contents()] == [1, 2, 2]
    manifest = stage.open().head
    (proposal,) = TieredPolicy(fan_in=2).propose(manifest)
    stage.carry_out(proposal, manifest)
    assert [row["n"] for row in stage.contents()] == [1, 2, 2]
    assert stage.runs() == 1


# --- Nothing comes back to life


def test_a_delete_in_a_middle_run_outlives_compactions_of_newer_runs() -> None:
    stage = Stage()
    stage.epoch(put=one(user="a", n=1))
    stage.epoch(delete=one(user="a"))
    stage.epoch(put=one(user="b", n=2))
    stage.compact(0, 2)
    assert stage.contents() == [{"user": "b", "n": 2, "who": None}]
    stage.epoch(merge=one(user="a", n=5))
    stage.compact(0, 2)
    assert stage.contents() == [{"user": "a", "n": 5, "who": None}, {"user": "b", "n": 2, "who": None}]
    stage.compact(0, 2)
    assert stage.runs() == 1
    assert stage.contents() == [{"user": "a", "n": 5, "who": None}, {"user": "b", "n": 2, "who": None}]


def test_an_expired_row_over_an_older_value_hides_it_for_good() -> None:
    stage = Stage(ENDING)
    stage.epoch(put=one(user="a", n=1, _expires=stage.clock.now_ms() + 10_000))
    stage.epoch(put=one(user="a", n=2))
    stage.epoch(150, put=one(user="b", n=3))
    assert [row["user"] for row in stage.contents()] == ["b"]
    stage.compact(0, 2)
    assert [row["user"] for row in stage.contents()] == ["b"]
    stage.compact(0, 2)
    assert [row["user"] for row in stage.contents()] == ["b"]
    assert stage.open().head.runs["t"][0].rows == 1


@pytest.mark.parametrize("schema", [ENDING, ENDING_COLUMN], ids=["row", "column"])
@pytest.mark.parametrize("compactions", [[], [(0, 2)], [(1, 2)], [(0, 2), (0, 2)], [(1, 2), (0, 2)], [(0, 3)]])
def test_operands_written_before_the_base_ended_still_fold_onto_it(schema: TableSchema, compactions: list[Any]) -> None:
    """The base lives until 100, the operands came at 60 and 120; at 130 all of them count, however they were compacted."""
    stage = Stage(schema)
    stage.epoch(put=one(user="a", n=1))
    stage.epoch(60, merge=one(user="a", n=10))
    stage.epoch(60, merge=one(user="a", n=100))
    for first, count in compactions:
        stage.compact(first, count)
    assert stage.contents() == [{"user": "a", "n": 111}]
    stage.epoch(99, put=one(user="b", n=1))
    assert stage.contents()[0] == {"user": "a", "n": 111}
    stage.epoch(1, put=one(user="b", n=1))
    assert stage.contents()[-1] == {"user": "b", "n": 1}
    assert stage.contents()[:-1] == ([] if schema is ENDING else [{"user": "a", "n": 7}])


def test_a_clear_hides_older_entries_through_partial_compactions() -> None:
    stage = Stage(list_table("t", {"user": pa.string()}, {"v": pa.int64()}))
    stage.epoch(put=rows(user=["a"] * 3, position=[0, 1, 2], v=[1, 2, 3]))
    stage.epoch(put=one(user="a", position=3, v=4))
    stage.epoch(clear=one(user="a"))
    stage.epoch(put=one(user="a", position=1, v=9))
    expected = [{"user": "a", "position": 1, "v": 9}]
    for first, count in ((0, 2), (1, 2), (0, 2)):
        stage.compact(first, count)
        assert stage.contents() == expected
    assert stage.runs() == 1
    assert stage.open().head.runs["t"][0].rows == 1


def test_a_clear_of_a_map_is_found_by_lookups_of_single_entries() -> None:
    stage = Stage(map_table("t", {"user": pa.string()}, {"sub": pa.string()}, {"v": pa.int64()}), chunk_bytes=1)
    stage.epoch(put=rows(user=["a"] * 4, sub=["w", "x", "y", "z"], v=[1, 2, 3, 4]))
    stage.epoch(put=one(user="b", sub="x", v=5), clear=one(user="a"))
    stage.epoch(put=one(user="a", sub="y", v=6))
    wanted = rows(user=["a"] * 4 + ["b"], sub=["w", "x", "y", "z", "x"])
    for _ in range(3):
        found = stage.open().snapshot().table("t").multi_get(wanted)
        assert found.found.tolist() == [False, False, True, False, True]
        assert found.rows.column("v").to_pylist() == [6, 5]
        stage.compact(0, 2)


# --- Writers


def test_a_writer_that_was_paused_and_superseded_commits_nothing() -> None:
    stage = Stage(checkpoint_every=4)
    stage.epoch(put=one(user="a", n=1))
    paused, half = stage.writer, stage.writer.epoch()
    half.put("t", one(user="a", n=666))
    stage.writer = world.force_writer(stage.open(), "b")
    stage.epoch(put=one(user="a", n=2))
    with pytest.raises(Fenced):
        half.commit()
    _check_fenced(stage, paused)


@pytest.mark.parametrize("trims", [1, 3])
def test_nor_does_it_after_the_log_was_trimmed_past_it(trims: int) -> None:
    """Its position in the log is free again: the create succeeds, and must not count."""
    stage = Stage(checkpoint_every=4, retention=NEWEST)
    stage.epoch(put=one(user="a", n=1))
    paused, half = stage.writer, stage.writer.epoch()
    half.put("t", one(user="a", n=666))
    free = paused.store.head.position + 1
    stage.writer = world.force_writer(stage.open(), "b")
    for _ in range(trims):
        for _ in range(5):
            stage.epoch(put=one(user="a", n=2))
        stage.writer.collect_garbage()
        stage.writer.collect_garbage()
    assert min(world.log_positions(stage.blobs)) > free
    with pytest.raises(Fenced):
        half.commit()
    assert min(world.log_positions(stage.blobs)) > free
    _check_fenced(stage, paused)


def _check_fenced(stage: Stage, paused: Writer) -> None:
    head = stage.open().head
    for attempt in (lambda: paused.put("t", one(user="a", n=666)), lambda: paused.define(ENDING), paused.collect_garbage):
        with pytest.raises(Fenced):
            attempt()
    paused.close()
    after = stage.open()
    assert (after.head.position, after.head.lease) == (head.position, head.lease)
    assert stage.contents() == [{"user": "a", "n": 2, "who": None}]
    assert after.verify().good
    stage.epoch(merge=one(user="a", n=1))
    assert stage.contents() == [{"user": "a", "n": 3, "who": None}]


def test_of_eight_threads_one_wins_each_epoch() -> None:
    stage = Stage(checkpoint_every=3)
    racing = 8
    start = threading.Barrier(racing)

    def race(name: str) -> list[int]:
        store, won = stage.open(), []
        for _ in range(6):
            writer = store.writer(name, force=True)
            start.wait()
            epoch = writer.epoch()
            epoch.merge("t", one(user="sum", n=1))
            epoch.put("t", one(user="last", n=epoch.number, who=name))
            with suppress(Conflict):
                epoch.commit()
                won.append(epoch.number)
            start.wait()
        return won

    with ThreadPoolExecutor(racing) as pool:
        won = dict(zip("abcdefgh", pool.map(race, "abcdefgh"), strict=True))
    assert sorted(epoch for epochs in won.values() for epoch in epochs) == list(range(1, 7))
    _check_winners(stage.open(), won)


def _check_winners(store: Store, won: dict[str, list[int]]) -> None:
    """Every epoch that is still retained holds what the one who was told of success wrote."""
    who = {epoch: name for name, epochs in won.items() for epoch in epochs}
    assert store.head.epoch == len(who)
    for mark in store.head.epochs:
        found = store.at(mark.epoch).table("t").multi_get(rows(user=["sum", "last"])).rows.to_pylist()
        assert [row["n"] for row in found] == [mark.epoch, mark.epoch]
        assert found[1]["who"] == who[mark.epoch]


# --- Other processes


def start(role: str, path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.store.racers", role, str(path), name, str(count)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> list[int]:
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return [int(line) for line in told.split()]


def create(path: Path) -> Store:
    store = Store.open(path, create=True, settings=racers.SETTINGS)
    with store.writer("first") as writer:
        writer.define(racers.TABLE)
    return store


def test_compaction_beside_the_commits_of_another_process(tmp_path: Path) -> None:
    store = create(tmp_path)
    process = start("add", tmp_path, "other", 40)
    steps = 0
    while process.poll() is None:
        steps += sum(1 for _ in store.compact(full=steps % 3 == 0, step_bytes=20_000))
        store.collect_garbage()
    assert finish(process) == list(range(1, 41))
    list(store.compact(full=True))
    assert steps
    found = {row["user"]: row["n"] for row in Store.open(tmp_path).snapshot().table("t").to_arrow().to_pylist()}
    assert found == {**{f"u{key}": 40 for key in range(20)}, "gone39": 39}
    assert store.verify().good


def test_of_eight_processes_one_wins_each_epoch(tmp_path: Path) -> None:
    store = create(tmp_path)
    names = [f"racer{number}" for number in range(8)]
    processes = [start("grab", tmp_path, name, 5) for name in names]
    won = {name: finish(process) for name, process in zip(names, processes, strict=True)}
    epochs = sorted(epoch for told in won.values() for epoch in told)
    assert epochs == list(range(1, len(epochs) + 1))
    assert epochs
    store.history.refresh()
    _check_winners(store, won)
    assert store.verify().good
