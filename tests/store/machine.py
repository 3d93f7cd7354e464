"""A store and its model side by side: each step does the same to both."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import BadInput, Conflict
from floodplain.keys import key_group
from floodplain.settings import StoreSettings
from floodplain.store.compaction import policy
from floodplain.store.compaction.compactor import compact
from floodplain.store.compaction.policy import Proposal
from floodplain.store.read.snapshot import Snapshot, TableView
from floodplain.store.rows.delta import EXPIRES_OF
from floodplain.store.rows.evolution import can_read
from floodplain.store.rows.layout import EXPIRES
from floodplain.store.rows.widening import made_anew
from floodplain.store.store import Store, Writer
from floodplain.store.write.epoch import Epoch
from floodplain.versions.log import lease
from floodplain.versions.records.manifest import Manifest
from tests.store import world
from tests.store.model import Contents, Difference, ModelTable, Row, Seen

Op = tuple[int, str, list[tuple[int, int, int]], int]
"""Number of a table, op, rows as (key, sub-key, seed of the values), and which columns are given."""


class Twins:
    """``keys`` bounds how many different keys are written; ``forged`` how many different hashes they have, 0 for the true."""

    def __init__(self, names: list[str], tier: str, settings: StoreSettings, keys: int = 8, forged: int = 0) -> None:
        self.blobs, self.clock, self.settings = world.memory(tier), ManualClock(), settings
        self.names, self.keys, self.forged = names, keys, forged
        self.species = {name: species for name, species in world.zoo().items() if name in names}
        self.tables = {name: species.table for name, species in self.species.items()}
        self.now_ms, self.epoch = 0, 0
        self.history: dict[int, dict[str, Seen]] = {}
        self.kept: dict[int, tuple[int, dict[str, ModelTable]]] = {}
        self.tags: dict[str, int] = {}
        self.planned: list[tuple[Store, Proposal, Manifest]] = []
        self.fenced: list[Writer] = []
        self.stores = [world.open_store(self.blobs, self.clock, settings)]
        self.writer = world.force_writer(self.stores[0], "w0")
        for table in self.tables.values():
            self.writer.define(table.schema())

    def store(self, which: int) -> Store:
        return self.stores[which % len(self.stores)]

    def past(self, which: int) -> int:
        return sorted(self.history)[which % len(self.history)]

    # --- Writing

    def write(self, delta: list[Op], tasks: int, step_ms: int) -> None:
        """An epoch by several tasks, each with the key groups that are its own."""
        self.clock.advance_ms(step_ms)
        epoch = self.writer.epoch()
        now_ms = self.clock.now_ms()
        writers = [epoch.task("op", str(task)) for task in range(tasks)]
        for name, op, rows in self.filled(delta):
            given = self.given(name, op, rows)
            owner = key_group(world.hashes_of(self.tables[name], given), self.settings.key_groups) % tasks
            for task, writer in enumerate(writers):
                writer.write(name, given.filter(pa.array(owner == task)), op)
            self.tables[name].apply(op, rows, now_ms)
        manifest = epoch.commit([writer.finish() for writer in writers])
        self.epoch, self.now_ms = self.epoch + 1, now_ms
        assert manifest.epoch == self.epoch
        self.remember()

    def remember(self) -> None:
        """What this epoch shows, and all that goes on from it."""
        self.history[self.epoch] = {name: Seen.of(table, self.now_ms) for name, table in self.tables.items()}
        self.kept[self.epoch] = self.now_ms, deepcopy(self.tables)

    def go_back(self, epoch: int) -> None:
        """Columns that were added since are gone; ids of columns are never used twice, nor are the model's."""
        told = self.writer.rollback(epoch)
        self.epoch += 1
        assert (told.epoch, told.restored) == (self.epoch, epoch)
        self.now_ms, self.tables = self.kept[epoch][0], deepcopy(self.kept[epoch][1])
        self.remember()

    def filled(self, delta: list[Op]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        for number, op, picked, mask in delta:
            name = self.names[number % len(self.names)]
            table = self.tables[name]
            rows = []
            for key, sub, seed in picked:
                row = self.entry(table, key % self.keys, sub)
                for column in table.columns:
                    chosen = bool(mask >> (column.uid % 8) & 1)
                    if (op == "merge" and column.merge and chosen) or (op == "put" and not chosen):
                        row[column.name] = world.value_of(column.type, (seed + 3 * column.uid) % 16, bool(column.merge))
                rows.append(row | (self._ends(table, seed) if op == "put" and mask >> 6 == 3 else {}))
            yield name, op, rows

    def _ends(self, table: ModelTable, seed: int) -> dict[str, int]:
        """Times at which a row and its values end that the caller chose, some of them past."""
        now_ms = self.clock.now_ms()
        ends = {EXPIRES_OF + column.name: now_ms + 15 * (seed - 2) for column in table.columns if column.ttl_ms}
        return ends | ({EXPIRES: now_ms + 25 * (seed - 2)} if table.ttl_ms else {})

    def entry(self, table: ModelTable, key: int, sub: int) -> dict[str, Any]:
        """Key and sub-key under the names that the table has for them."""
        row = self.species[table.name].row(key, sub)
        return dict(zip([*table.keys, *table.subkeys], row.values(), strict=True))

    def given(self, name: str, op: str, rows: list[dict[str, Any]]) -> pa.Table:
        table = self.tables[name]
        columns = list(table.keys) if op == "clear" else list(rows[0])
        return world.arrow_rows(table, rows, columns, self.forged)

    def half_written(self, writer: Writer, delta: list[Op]) -> Epoch:
        """An epoch with rows, not committed. Skips tables whose definition this writer does not have."""
        epoch = writer.epoch()
        newest = self.writer.store.head
        for name, op, rows in self.filled(delta):
            if epoch.ticket.schemas[name] == newest.schema(name):
                getattr(epoch, op)(name, self.given(name, op, rows))
        return epoch

    def take_over(self, *, force: bool) -> None:
        if not force:
            self.writer.close()
        self.fenced.append(self.writer)
        self.stores.append(world.open_store(self.blobs, self.clock, self.settings))
        store, owner = self.stores[-1], f"w{len(self.stores)}"
        self.writer = Writer(store, lease.take(store.history, owner, force=force))

    # --- Maintenance

    def plan(self, store: Store, name: str, which: int, first: int, length: int, step_bytes: int) -> None:
        """Propose to merge some neighbours in recency, now or much later."""
        manifest = store.history.refresh()
        bands = policy.bands(manifest, name, step_bytes)
        band = bands[which % len(bands)]
        levels = policy.levels(manifest, name, band)
        if levels:
            runs = tuple(run for level in levels[first % len(levels) :][:length] for run in level)
            self.planned.append((store, Proposal(name, band, runs, 1), manifest))

    def carry_out(self, which: int) -> bool:
        """Whether it still fitted."""
        store, proposal, manifest = self.planned.pop(which % len(self.planned))
        try:
            compact(store.history, store.open_runs, proposal, manifest)
        except Conflict:
            return False
        return True

    def collect(self, store: Store, *, as_writer: bool) -> None:
        collected = (self.writer if as_writer else store).collect_garbage()
        retained = {mark.epoch for mark in store.history.refresh().epochs}
        newest = range(max(1, self.epoch - self.settings.retention.newest + 1), self.epoch + 1)
        assert retained >= {*newest, *self.tags.values()}
        assert retained == self.history.keys() - set(collected.epochs)
        self.history = {epoch: seen for epoch, seen in self.history.items() if epoch in retained}
        present, named = world.run_objects(self.blobs), world.named_objects(store)
        assert named == present if as_writer else named <= present

    # --- Checking

    def check(self, snapshot: Snapshot) -> None:
        assert snapshot.epoch == self.epoch
        for name, table in self.tables.items():
            check_table(snapshot.table(name), table, table.contents(self.now_ms))

    def check_epoch(self, store: Store, epoch: int) -> None:
        snapshot = store.at(epoch)
        assert snapshot.epoch == epoch
        for name, seen in self.history[epoch].items():
            check_table(snapshot.table(name), seen.table, seen.contents)

    def check_everything(self, store: Store) -> None:
        self.check(store.snapshot())
        for epoch in self.history:
            self.check_epoch(store, epoch)
        assert store.verify().good

    def check_lookup(self, view: TableView, table: ModelTable, contents: Contents, wanted: list[Row], **how: Any) -> None:
        """``contents`` is what the view should show. ``how``: ``subs`` asks for entries rather than keys, and ``now_ms``."""
        columns = [*table.keys, *table.subkeys] if how["subs"] else list(table.keys)
        found = view.multi_get(world.arrow_rows(table, wanted, columns, self.forged), now_ms=how["now_ms"])
        assert (np.diff(found.key_number) >= 0).all()
        expected_rows = []
        for number, row in enumerate(wanted):
            key, sub = table.entry_of(row)
            expected = {e: v for e, v in contents.items() if e[0] == key and (not how["subs"] or e[1] == sub)}
            rows = found.rows.filter(pa.array(found.key_number == number))
            assert table.read(rows) == expected
            assert found.found[number] == bool(expected)
            check_list_order(table, rows)
            expected_rows.append(expected.get((key, sub), table.defaults()))
        if not self.forged:
            self._check_gets(view, table, wanted)
        if table.shape == "value":
            aligned = found.aligned().to_pylist()
            assert [table.values_of(row) for row in aligned] == expected_rows

    def _check_gets(self, view: TableView, table: ModelTable, wanted: list[Row]) -> None:
        """One entry after the other, as a multi-get of them all gives them."""
        names = [*table.keys, *table.subkeys]
        found = view.multi_get(world.arrow_rows(table, wanted, names, 0))
        expected = {number: table.values_of(row) for number, row in zip(found.key_number, found.rows.to_pylist(), strict=True)}
        for number, row in enumerate(wanted):
            values = view.get(*(row[name] for name in names))
            assert (None if values is None else table.values_of(values)) == expected.get(number)

    def check_diff(self, store: Store, name: str, older: int, newer: int) -> None:
        now = self.history[newer][name]
        schemas = [store.at(epoch).manifest.schema(name) for epoch in (older, newer)]
        if not can_read(*schemas) or any(made_anew(schemas[0].values, schemas[1].values)):
            with pytest.raises(BadInput, match="cannot be compared"):
                list(store.diff(name, older, newer))
            return
        expected = Difference.between(self.history[older][name], now)
        found = Difference({}, {}, {}, {})
        view = store.at(newer).table(name)
        for change in store.diff(name, older, newer):
            for side in ("added", "before", "after", "deleted"):
                getattr(found, side).update(now.table.read(view._logical(getattr(change, side), None, False)))
        assert found == expected

    def check_times(self, view: TableView, low: int, high: int) -> None:
        table = self.tables["timers"]
        parts = list(view.scan(times=(low, high)))
        expected = {e: v for e, v in table.contents(self.now_ms).items() if low <= e[1][0] < high}
        assert (table.read(pa.concat_tables(parts)) if parts else {}) == expected

    def check_groups(self, view: TableView, table: ModelTable, low: int, high: int) -> None:
        """The rows of some key groups, and those of the others."""
        inside = list(view.scan(groups=((low, high),)))
        rest = tuple((a, b) for a, b in ((0, low), (high, self.settings.key_groups)) if a < b)
        for part in inside:
            rows = world.arrow_rows(table, part.to_pylist(), list(table.keys), self.forged)
            groups = key_group(world.hashes_of(table, rows), self.settings.key_groups)
            assert ((low <= groups) & (groups < high)).all()
        parts = [*inside, *(view.scan(groups=rest) if rest else ())]
        assert (table.read(pa.concat_tables(parts)) if parts else {}) == table.contents(self.now_ms)


def check_table(view: TableView, table: ModelTable, expected: Contents) -> None:
    rows = view.to_arrow()
    assert table.read(rows) == expected
    assert rows.column_names == [*table.keys, *table.subkeys, *(column.name for column in table.columns)]
    check_list_order(table, rows)


def check_list_order(table: ModelTable, rows: pa.Table) -> None:
    if table.shape == "ordered":
        last: dict[Any, int] = {}
        for row in rows.to_pylist():
            key, (position,) = table.entry_of(row)
            assert last.get(key, -1) < position
            last[key] = position
