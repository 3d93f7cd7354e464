"""A store whose every epoch is known beforehand: epoch k has the same rows whoever writes it, and however often it is tried."""

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodplain.clock import ManualClock
from floodplain.keys import key_group
from floodplain.settings import RetentionSettings
from floodplain.store.store import Store, Writer
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import lease
from floodplain.versions.records.edit import SourcePosition
from tests.store import world
from tests.store.machine import check_table
from tests.store.model import Seen

START_MS = 1_700_000_000_000
STEP_MS = 30
NAMES = ("ending", "items")


class Scene:
    """``epochs`` of them are planned; ``tasks`` write each. Settings are those of the store, few epochs retained."""

    def __init__(self, seed: int, *, epochs: int = 16, tasks: int = 1, **settings: Any) -> None:
        self.clock = ManualClock()
        self.settings = world.settings(retention=RetentionSettings(newest=2, every_ms=()), chunk_bytes=300, **settings)
        self.tasks = tasks
        self.species = {name: world.zoo()[name] for name in NAMES}
        self.rows: dict[int, list[tuple[str, str, pa.Table]]] = {}
        self.given: dict[int, list[tuple[str, str, list[dict[str, Any]]]]] = {}
        self._seen: dict[tuple[int, ...], dict[str, Seen]] = {}
        rng = random.Random(seed)
        for epoch in range(1, epochs + 1):
            self._plan(epoch, rng)

    def now_ms(self, epoch: int) -> int:
        return START_MS + STEP_MS * epoch

    def _plan(self, epoch: int, rng: random.Random) -> None:
        self.rows[epoch], self.given[epoch] = [], []
        for name, species in self.species.items():
            for op in rng.choices(("put", "merge", "merge", "delete", "clear"), k=2):
                rows = [self._row(name, op, rng) for _ in range(3)]
                names = list(species.table.keys) if op == "clear" else list(rows[0])
                self.rows[epoch].append((name, op, world.arrow_rows(species.table, rows, names, 0)))
                self.given[epoch].append((name, op, rows))

    def seen(self, epochs: tuple[int, ...]) -> dict[str, Seen]:
        """What the tables show once these epochs were written, one after the other."""
        if epochs not in self._seen:
            tables = {name: replace(species.table, held={}) for name, species in self.species.items()}
            for epoch in epochs:
                for name, op, rows in self.given[epoch]:
                    tables[name].apply(op, rows, self.now_ms(epoch))
            self._seen[epochs] = {name: Seen.of(table, self.now_ms(epochs[-1])) for name, table in tables.items()}
        return self._seen[epochs]

    def _row(self, name: str, op: str, rng: random.Random) -> dict[str, Any]:
        species = self.species[name]
        row = species.row(rng.randrange(5), rng.randrange(3))
        if op in ("put", "merge"):
            columns = [column for column in species.table.columns if op == "put" or column.merge]
            row |= {c.name: world.value_of(c.type, rng.randrange(16), bool(c.merge)) for c in columns}
        return row

    # --- What is done to a store

    def open(self, blobs: Blobs) -> Store:
        return world.open_store(blobs, self.clock, self.settings, log_segment=1)

    def create(self, epochs: int) -> Blobs:
        """A store with so many epochs, a compaction and a collection behind it, the log trimmed, and some garbage."""
        blobs = world.memory()
        writer = world.force_writer(self.open(blobs))
        for species in self.species.values():
            writer.define(replace(species.table).schema())
        for epoch in range(1, epochs + 1):
            self.commit(writer)
            if epoch in (epochs - 4, epochs - 2):
                list(writer.store.compact(full=True))
            if epoch == epochs - 3:
                writer.collect_garbage()
        self._fill(writer.epoch(), epochs + 1)[0].finish()
        return blobs

    def commit(self, writer: Writer) -> int:
        """The next epoch, which is returned."""
        head = writer.store.history.refresh()
        number = head.epoch + 1
        epoch = writer.epoch(now_ms=self.now_ms(number))
        # What the content is made of stands where others have their input position.
        source = SourcePosition("scene", number, f"{head.source.offsets} {number}")
        epoch.commit([task.finish() for task in self._fill(epoch, number)], source=source)
        return number

    def go_back(self, writer: Writer) -> None:
        """To the oldest epoch that is retained."""
        oldest = writer.store.history.refresh().epochs[0].epoch
        content = writer.store.at(oldest).manifest.source
        writer.rollback(oldest)
        assert writer.store.head.source == content

    def _fill(self, epoch: Any, number: int) -> list[Any]:
        tasks = [epoch.task("op", str(task)) for task in range(self.tasks)]
        for name, op, rows in self.rows[number]:
            hashes = world.hashes_of(self.species[name].table, rows)
            owner = key_group(hashes, self.settings.key_groups) % self.tasks
            for number_, task in enumerate(tasks):
                task.write(name, rows.filter(pa.array(owner == number_)), op)
        return tasks

    def take(self, blobs: Blobs) -> Writer:
        """As a process that starts after another one died."""
        store = self.open(blobs)
        return Writer(store, lease.take(store.history, "w", force=True))

    # --- What must hold

    def check(self, blobs: Blobs) -> int:
        """It opens, and every retained epoch has exactly its content. Returns the last epoch."""
        store = self.open(blobs)
        head = store.snapshot()
        if head.epoch:
            self._check_tables(head, head.epoch)
        for mark in head.manifest.epochs:
            self._check_tables(store.at(mark.epoch), mark.epoch)
        assert world.named_objects(store) <= world.run_objects(blobs)
        return head.epoch

    def _check_tables(self, snapshot: Any, epoch: int) -> None:
        assert snapshot.epoch == epoch
        epochs = tuple(map(int, snapshot.manifest.source.offsets.split()))
        assert epochs[-1] == epoch if not snapshot.manifest.restored else epochs[-1] <= epoch
        for name, seen in self.seen(epochs).items():
            check_table(snapshot.table(name), seen.table, seen.contents)

    def check_clean(self, blobs: Blobs) -> None:
        """Requires: a writer's collection was the last thing done."""
        store = self.open(blobs)
        assert world.run_objects(blobs) == world.named_objects(store)
        assert store.verify().good
