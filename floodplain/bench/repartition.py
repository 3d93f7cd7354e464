"""Changes the number of slots: by an edit of the assignment, or by rewriting the state, as systems must whose slots own files.

Two times for each: until the new partitioning is durable (``move``), and until every new slot has answered a multi-get for a
sample of the keys it now has (``run``). Rewriting contenders read the old partitions, split by key group, and write the new ones.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from rocksdict import IngestExternalFileOptions, Rdict, ReadOptions, SstFileWriter

from floodplain.bench.contenders import ours, plain, rocks
from floodplain.bench.harness.frame import Contestant
from floodplain.bench.workloads.state_updates import Kind
from floodplain.keys import hash_columns, key_group
from floodplain.store.read import scan
from floodplain.store.read.snapshot import epoch_rules
from floodplain.store.run.writer import build_run
from floodplain.store.store import Store, Writer
from floodplain.store.write.epoch import Epoch
from floodplain.store.write.task_writer import Report, run_options, write_object
from floodplain.tiers import paths
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.requirements import RequireAssignment
from floodplain.versions.records.edit import Assignment, SetAssignment

REWRITE = "rewrite"
COPY = "copy"
KEY_GROUPS = 1024
SLOTS = (4, 7)


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the number of slots; ``samples``: lookup keys for each new slot."""

    before: int
    after: int
    samples: tuple[pa.Table, ...]

    @property
    def name(self) -> str:
        return f"{self.before}to{self.after}"


def plan(kind: Kind, rows: pa.Table, before: int, after: int, sample: int) -> Move:
    """``rows``: the whole state, as rows of ``kind``."""
    keys = rows.select(kind.keys).combine_chunks()
    groups = groups_of(keys)
    picks = [np.flatnonzero((groups >= low) & (groups < high))[:sample] for low, high in ranges(after)]
    return Move(before, after, tuple(keys.take(pa.array(pick)) for pick in picks))


def ranges(slots: int) -> list[tuple[int, int]]:
    """The key groups of each slot: contiguous ranges, as even as possible."""
    bounds = [slot * KEY_GROUPS // slots for slot in range(slots + 1)]
    return list(pairwise(bounds))


def groups_of(keys: pa.Table) -> np.ndarray:
    return key_group(hash_columns([keys.column("user")]), KEY_GROUPS)


class Stored(Protocol):
    """State of one kind in a Floodplain store."""

    kind: Kind
    path: Path
    store: Store
    writer: Writer


class Slots:
    """The new slots. Each has its own handle on the store, opened before the change, and has never read the table.

    A slot reads the new commits from the log, opens the runs, and verifies the chunks that it reads.
    """

    def __init__(self, kind: Kind, move: Move) -> None:
        self._kind = kind
        self._move = move
        self._handles: list[Store] = []

    def open(self, path: Path) -> None:
        self._handles = [Store.open(path) for _ in self._move.samples]

    def answer(self) -> int:
        return sum(self._answer(store, keys) for store, keys in zip(self._handles, self._move.samples, strict=True))

    def _answer(self, store: Store, keys: pa.Table) -> int:
        snapshot = store.snapshot()
        assignment = snapshot.manifest.assignment
        assert assignment is not None and assignment.slots == self._move.after
        return ours.total(self._kind, snapshot.table(ours.TABLE).multi_get(keys).rows)

    def close(self) -> None:
        for store in self._handles:
            store.close()
        self._handles = []


def assign(history: History, slots: int) -> SetAssignment:
    """The update that sets the number of slots."""
    version = history.head.assignment.version if history.head.assignment else 0
    return SetAssignment(Assignment(version + 1, slots, tuple((low, slot) for slot, (low, _) in enumerate(ranges(slots)))))


class Reassign:
    """Floodplain: commit a new assignment. No state moves; a slot reads its key groups where they are."""

    def __init__(self, state: Stored, move: Move) -> None:
        self._state = state
        self._move = move
        self._slots = Slots(state.kind, move)

    def prepare(self, number: int) -> None:  # noqa: ARG002
        self.close()
        self._commit(self._move.before)
        self._slots.open(self._state.path)

    def move(self, number: int) -> int:  # noqa: ARG002
        self._commit(self._move.after)
        return self._move.after

    def run(self, number: int) -> int:
        self.move(number)
        return self._slots.answer()

    def _commit(self, slots: int) -> None:
        history = self._state.store.history
        update = assign(history, slots)
        required = RequireAssignment(update.assignment.version - 1)
        commit(history, [update], [required], token=self._state.writer.token)

    def close(self) -> None:
        self._slots.close()


class Rewrite:
    """All state is read by a scan and written again by task writers, partitioned by new slot."""

    name = REWRITE

    def __init__(self, state: Stored, move: Move, home: Path) -> None:
        self._state = state
        self._move = move
        self._home = home / f"{self.name}-{move.name}"
        self._target: Store | None = None
        self._slots = Slots(state.kind, move)

    def prepare(self, number: int) -> None:  # noqa: ARG002
        self.close()
        self._target = Store.open(self._home, create=True)
        self._writer = self._target.writer("bench")
        self._writer.define(ours.SCHEMAS[self._state.kind.name])
        self._slots.open(self._home)

    def move(self, number: int) -> int:  # noqa: ARG002
        assert self._target is not None
        epoch = self._writer.epoch()
        reports = [self._partition(epoch, slot) for slot in range(self._move.after)]
        epoch.commit(reports, also=[assign(self._target.history, self._move.after)])
        return self._move.after

    def run(self, number: int) -> int:
        self.move(number)
        return self._slots.answer()

    def _partition(self, epoch: Epoch, slot: int) -> Report:
        task = epoch.task("rewrite", str(slot))
        for rows in self._state.store.snapshot().table(ours.TABLE).scan(groups=(ranges(self._move.after)[slot],)):
            task.write(ours.TABLE, rows)
        return task.finish()

    @property
    def rows(self) -> int:
        """The rows written in the last round."""
        assert self._target is not None
        return sum(run.rows for run in self._target.head.runs[ours.TABLE])

    def close(self) -> None:
        self._slots.close()
        if self._target is not None:
            self._target.close()
            self._target = None
        shutil.rmtree(self._home, ignore_errors=True)


class Copy(Rewrite):
    """A lower bound for rewriting: physical rows are copied from run to run, without checks, hashing or sorting."""

    name = COPY

    def _partition(self, epoch: Epoch, slot: int) -> Report:
        assert self._target is not None
        source, history = self._state.store, self._target.history
        manifest = source.head
        schema = manifest.schemas[ours.TABLE][-1]
        groups = (ranges(self._move.after)[slot],)
        sources = source.open_runs.sources(manifest, ours.TABLE, groups)
        rules = epoch_rules(manifest, schema)
        windows = scan.plan(sources, schema, groups, KEY_GROUPS, source.history.settings.window_bytes)
        rows = pa.concat_tables(scan.resolved(window, sources, schema, rules) for window in windows)
        run = build_run(rows, schema, 1, 1, 1, run_options(history.settings, history.blobs, history.head.store, KEY_GROUPS))
        name = paths.run(epoch.ticket.start, history.randomness.nonce(), str(slot))
        refs = write_object([run], name, history.blobs, history.settings, history.clock, history.randomness)
        return Report(runs=refs, rows=len(rows))


class RocksRewrite:
    """One RocksDB per slot, with keys prefixed by key group: the range of a new slot is copied into an SST file and ingested.

    That is faster here than write batches, and the best that stream processors on RocksDB do when they rescale.
    """

    def __init__(self, contender: rocks.Rocks, move: Move, home: Path) -> None:
        self._contender = contender
        self._move = move
        self._home = home / f"rocksdb-{move.name}"
        self._made: list[Rdict] = []
        pairs = rocks.entries(contender.db)
        users = pa.array([key.split(b"\0", 1)[0] for key, _ in pairs]).cast(pa.string())
        groups = groups_of(pa.table({"user": users}))
        entries = sorted((_prefix(group) + key, value) for group, (key, value) in zip(groups.tolist(), pairs, strict=True))
        edges = np.searchsorted(np.sort(groups), [low for low, _ in ranges(move.before)] + [KEY_GROUPS]).tolist()
        self._before = [
            self._write(self._home / f"before-{slot}", entries[low:high]) for slot, (low, high) in enumerate(pairwise(edges))
        ]
        self._samples = [
            sorted(_prefix(group) + key for group, key in zip(groups_of(keys).tolist(), contender.encoded(keys), strict=True))
            for keys in move.samples
        ]

    def prepare(self, number: int) -> None:  # noqa: ARG002
        for db in self._made:
            db.close()
        self._made = []
        shutil.rmtree(self._home / "after", ignore_errors=True)

    def move(self, number: int) -> int:  # noqa: ARG002
        for slot, (low, high) in enumerate(ranges(self._move.after)):
            self._made.append(self._write(self._home / "after" / str(slot), self._between(_prefix(low), _prefix(high))))
        return self._move.after

    def run(self, number: int) -> int:
        self.move(number)
        answers = zip(self._made, self._samples, strict=True)
        return sum(self._contender.total(rocks.values_of(db, keys)) for db, keys in answers)

    def _between(self, low: bytes, high: bytes) -> Any:
        for db in self._before:
            bounded = ReadOptions()
            bounded.set_iterate_upper_bound(high)
            yield from db.items(from_key=low, read_opt=bounded)

    def _write(self, path: Path, entries: Any) -> Rdict:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".sst")
        writer = SstFileWriter(rocks.options())
        writer.open(str(file))
        for key, value in entries:
            writer[key] = value
        writer.finish()
        db = rocks.open_db(path)
        moved = IngestExternalFileOptions()
        moved.set_move_files(True)
        db.ingest_external_file([str(file)], moved)
        return db

    def close(self) -> None:
        self.prepare(0)
        for db in self._before:
            db.close()
        shutil.rmtree(self._home, ignore_errors=True)


class PlainRewrite:
    """One file of encoded objects per slot: read, split, written back."""

    def __init__(self, contender: plain.Plain, move: Move, home: Path) -> None:
        self._contender = contender
        self._move = move
        self._home = home / f"dict-{move.name}"
        self._home.mkdir()
        self._samples = [contender.encoded(keys) for keys in move.samples]
        for slot, state in enumerate(_split(contender.state, move.before)):
            plain.save(self._home / f"before-{slot}", state)

    def move(self, number: int) -> int:  # noqa: ARG002
        state: dict[str, Any] = {}
        for slot in range(self._move.before):
            state.update(plain.load(self._home / f"before-{slot}"))
        self._parts = _split(state, self._move.after)
        for slot, part in enumerate(self._parts):
            plain.save(self._home / f"after-{slot}", part)
        return self._move.after

    def run(self, number: int) -> int:
        self.move(number)
        return sum(self._contender.answer(keys, part) for keys, part in zip(self._samples, self._parts, strict=True))

    def close(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)


def _split(state: Mapping[str, Any], slots: int) -> list[dict[str, Any]]:
    slot_of = np.repeat(np.arange(slots), [high - low for low, high in ranges(slots)])
    parts: list[dict[str, Any]] = [{} for _ in range(slots)]
    which = slot_of[groups_of(pa.table({"user": list(state)}))].tolist()
    for slot, (key, value) in zip(which, state.items(), strict=True):
        parts[slot][key] = value
    return parts


def _prefix(group: int) -> bytes:
    return group.to_bytes(2, "big")


Mover: TypeAlias = Reassign | Rewrite | RocksRewrite | PlainRewrite


def contestant(name: str, mover: Mover, *, answering: bool = True) -> Contestant:
    """``answering``: timed until every new slot has answered; otherwise until the new partitioning is durable."""
    return Contestant(name, mover.run if answering else mover.move, None if isinstance(mover, PlainRewrite) else mover.prepare)
