"""A snapshot: the tables of one manifest, with multi-get and range scan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import hash_columns, key_group, normalize_keys
from floodplain.metrics import LOOKUP_ROWS, LOOKUPS
from floodplain.store.read import key_range_reader as pieces
from floodplain.store.read import lookup, point_get, scan
from floodplain.store.read.snapshot_files import SnapshotFiles
from floodplain.store.read.task_reads import TaskReads
from floodplain.store.rows import large_tables, layout
from floodplain.store.rows.definition import recorded
from floodplain.store.rows.delta import cast_column, hashes_of
from floodplain.store.rows.layout import EXPIRES, SUB
from floodplain.store.rows.resolve import Rules, default_array
from floodplain.store.run.lookup_keys import LookupKeys, Source
from floodplain.store.run.open_runs import INDEXED, OpenRuns
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.groups import from_mask
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import Field, TableSchema, fields_named
from floodplain.versions.records.user_names import UserNames
from floodplain.versions.retention.pins import Pin


@dataclass(frozen=True)
class Lookup:
    """The result of a multi-get."""

    schema: TableSchema
    hashes: np.ndarray
    """Of the lookup keys, in their order: pass them as ``_hash`` when writing the same keys."""
    _rows: pa.Table
    _key_number: np.ndarray

    @cached_property
    def _order(self) -> np.ndarray | None:
        """The permutation that sorts rows by key number; None if they are sorted, as when the lookup keys were sorted by hash."""
        in_order = bool((self._key_number[1:] >= self._key_number[:-1]).all())
        return None if in_order else np.argsort(self._key_number, kind="stable")

    @cached_property
    def rows(self) -> pa.Table:
        """The rows of all keys, sorted by the number of their key, then by sub-key."""
        return self._rows if self._order is None else large_tables.take(self._rows, self._order)

    @cached_property
    def key_number(self) -> np.ndarray:
        """Per row, the number of its lookup key."""
        return self._key_number if self._order is None else self._key_number[self._order]

    @property
    def needle(self) -> np.ndarray:
        """The former name of ``key_number``."""
        return self.key_number

    @property
    def found(self) -> np.ndarray:
        """Per lookup key, whether it has any row."""
        mask = np.zeros(len(self.hashes), bool)
        mask[self._key_number] = True
        return mask

    def aligned(self) -> pa.Table:
        """One row per lookup key, in their order, defaults where there is none. Only for tables with one row per key.

        Without key columns: the caller has them.
        """
        defaults = {field.name: default_array(field, 1) for field in self.schema.values}
        names = [name for name in self._rows.column_names if name in defaults or name.startswith(EXPIRES)]
        if len(self._key_number) == len(self.hashes) and self._order is None and _counts_up(self._key_number):
            return self._rows.select(names)
        place = np.full(len(self.hashes), len(self._key_number))
        place[self._key_number] = np.arange(len(self._key_number))
        if np.count_nonzero(place < len(self._key_number)) < len(self._key_number):
            raise BadInput(f"table {self.schema.table} has several rows per key: use rows and key_number")
        rows = self._rows.select(names)
        if len(self._key_number) < len(place):
            absent = [defaults[name] if name in defaults else pa.nulls(1, pa.int64()) for name in names]
            rows = pa.concat_tables([rows, pa.Table.from_arrays(absent, schema=rows.schema)])
        return large_tables.take(rows, place)


def _counts_up(numbers: np.ndarray) -> bool:
    """Whether they are 0, 1, 2, …"""
    return bool((numbers == np.arange(len(numbers))).all())


def epoch_rules(manifest: Manifest, schema: TableSchema, *, keep_unfolded: bool = False) -> Rules:
    """Expiry as of the epoch: by a watermark in the manifest, not a clock, so every reader of an epoch sees the same rows."""
    watermark = manifest.watermarks.get(schema.ttl_clock, layout.BEGINNING)
    return Rules(min(max(watermark, layout.BEGINNING), layout.NEVER), keep_unfolded)


def logical(schema: TableSchema, rows: pa.Table, columns: Sequence[str] | None = None, expiries: bool = False) -> pa.Table:
    """Physical rows under the names of their columns; ``expiries`` as in ``multi_get``."""
    fields = schema.fields if columns is None else fields_named(schema, columns)
    out = {field.name: _logical_column(schema, rows, field) for field in fields}
    if expiries:
        out |= {f"_expires_{f.name}": rows.column(layout.expires_column(f)) for f in schema.values if f.ttl_ms}
        if schema.ttl_ms:
            out[EXPIRES] = rows.column(EXPIRES)
    return pa.table(out)


def _logical_column(schema: TableSchema, rows: pa.Table, field: Field) -> pa.Array | pa.ChunkedArray:
    if field in schema.subkeys and schema.shape != "hashed":
        return layout.sub_to_integers(layout.numbers(rows, SUB), field)
    return rows.column(layout.column(field))


class TableView:
    """One table at one epoch. All reads see exactly that epoch."""

    def __init__(self, files: SnapshotFiles, schema: TableSchema, open_runs: OpenRuns, history: History) -> None:
        self.schema = schema
        self._files = files
        self._open_runs = open_runs
        self._history = history
        self._points: tuple[Manifest, point_get.PointGet | None] | None = None
        """Of this manifest, prepared for ``get``; None where that goes as ``multi_get`` does."""

    @property
    def _manifest(self) -> Manifest:
        return self._files.manifest

    def multi_get(
        self,
        keys: pa.Table | pa.RecordBatch,
        *,
        columns: Sequence[str] | None = None,
        now_ms: int | None = None,
        expiries: bool = False,
    ) -> Lookup:
        """Look up many keys at once. ``keys`` has the key columns, by name; with sub-key columns too, only those entries.

        ``now_ms`` decides what has expired; if not given, the time of the epoch does. A column ``_hash`` is believed.
        ``expiries`` adds the columns ``_expires`` and ``_expires_<column>``.
        """
        lookup_keys, rules = self._lookup_keys(keys), self._rules(now_ms)
        with_keys = columns is None or any(field.name in columns for field in self.schema.keys)
        sources = self._sources(self._groups_of(lookup_keys.hashes), rules.now_ms)
        rows, key_number = self._files.read(
            lambda manifest: lookup.multi_get(lookup_keys, sources(manifest), self.schema, rules, keys=with_keys)
        )
        self._count(len(rows))
        return Lookup(self.schema, lookup_keys.hashes, self._logical(rows, columns, expiries), key_number)

    def get(self, *key: object) -> dict[str, Any] | None:
        """The values of one entry, by name, or None: for a query of one key after the other; many keys are one ``multi_get``.

        ``key``: the key columns in their order, then the sub-keys if the table has any.
        """
        found = self._files.read(partial(self._point, key))
        if found is not point_get.UNSETTLED:
            self._count(found is not None)
            return None if found is None else dict(found)
        rows = self.multi_get(point_get.key_table(self.schema, key), columns=[field.name for field in self.schema.values]).rows
        return {name: rows.column(name)[0].as_py() for name in rows.column_names} if len(rows) else None

    def _point(self, key: Sequence[object], manifest: Manifest) -> Mapping[str, Any] | None:
        if len(key) != len(self.schema.keys) or len(manifest.runs.get(self.schema.table, ())) >= INDEXED:
            return point_get.UNSETTLED
        if self._points is None or self._points[0] is not manifest:
            sources = self._open_runs.sources(manifest, self.schema.table)
            applies = point_get.applies(self.schema, sources)
            self._points = manifest, point_get.PointGet(self.schema, sources, manifest.key_groups) if applies else None
        points = self._points[1]
        return point_get.UNSETTLED if points is None else points.get(key)

    def pieces(self, key: pa.Table, *, now_ms: int | None = None) -> Iterator[pa.Table]:
        """All rows of one key by sub-key, in bounded pieces: what a multi-get of it would give, for keys with very many rows."""
        lookup_keys, rules = self._lookup_keys(key), self._rules(now_ms)
        groups = self._groups_of(lookup_keys.hashes)
        sources, piece_bytes = self._sources(groups, rules.now_ms), self._history.settings.window_bytes
        bounds = self._files.read(lambda manifest: pieces.plan(lookup_keys.hashes[0], sources(manifest), piece_bytes))
        reader: tuple[Manifest, pieces.PieceReader] | None = None

        def read(low: int, high: int, manifest: Manifest) -> pa.Table:
            nonlocal reader
            if reader is None or reader[0] is not manifest:
                anew = pieces.PieceReader(lookup_keys, sources(manifest), self.schema, rules)
                if low:
                    anew.read(*bounds[0])
                reader = manifest, anew
            return reader[1].read(low, high)

        for low, high in bounds:
            rows = self._files.read(partial(read, low, high))
            self._count(len(rows))
            if len(rows):
                yield self._logical(rows, None, False)

    def footprint(self, hashes: np.ndarray) -> lookup.Footprint:
        """How much the rows of keys with these hashes take, as far as footers tell: no row is read."""
        sources = self._sources(self._groups_of(hashes), None)
        return self._files.read(lambda manifest: lookup.footprint(hashes, sources(manifest)))

    def scan(
        self,
        *,
        groups: GroupRanges | None = None,
        columns: Sequence[str] | None = None,
        times: tuple[int, int] | None = None,
        now_ms: int | None = None,
        expiries: bool = False,
    ) -> Iterator[pa.Table]:
        """The rows of some key groups (all if not given) in bounded pieces, by hash; a timer table's by (key group, time).

        ``times`` is a half-open range of the time of a timer table: only what may hold it is read.
        """
        wanted = ((0, self._manifest.key_groups),) if groups is None else groups
        self._check_groups(wanted)
        subs, rules = self._sub_range(times), self._rules(now_ms)
        window_bytes, key_groups = self._history.settings.window_bytes, self._manifest.key_groups
        sources = self._sources(wanted, rules.now_ms)

        def read(window: scan.Window, manifest: Manifest) -> pa.Table:
            return scan.resolved(window, sources(manifest), self.schema, rules, times=subs)

        # A window is a range of hashes: it holds the same rows whichever runs of the epoch they are read from.
        windows = self._files.read(
            lambda manifest: scan.plan(sources(manifest), self.schema, wanted, key_groups, window_bytes, subs)
        )
        for window in windows:
            rows = self._files.read(partial(read, window))
            if len(rows):
                rows = scan.in_time_order(rows, key_groups) if self.schema.shape == "time" else rows
                yield self._logical(rows, columns, expiries)

    def to_arrow(self, *, columns: Sequence[str] | None = None, now_ms: int | None = None) -> pa.Table:
        """The whole table in memory; its columns have a chunk for each piece that was read."""
        return pa.concat_tables([self.empty(columns), *self.scan(columns=columns, now_ms=now_ms)])

    def empty(self, columns: Sequence[str] | None = None) -> pa.Table:
        """No rows, with the columns that a read would give."""
        return self._logical(layout.physical(self.schema).empty_table(), columns, False)

    def count(self, *, now_ms: int | None = None) -> int:
        """The number of rows. It scans the table."""
        key = self.schema.keys[0].name
        return sum(len(rows) for rows in self.scan(columns=[key], now_ms=now_ms))

    def _count(self, rows: int) -> None:
        self._open_runs.counters.add(LOOKUPS, self.schema.table)
        self._open_runs.counters.add(LOOKUP_ROWS, self.schema.table, rows)

    def _rules(self, now_ms: int | None) -> Rules:
        return epoch_rules(self._manifest, self.schema) if now_ms is None else Rules(now_ms)

    def _sources(self, groups: GroupRanges | None, now_ms: int | None) -> Callable[[Manifest], list[Source]]:
        """Opens the runs of a manifest, once for as long as it is the same one."""
        opened: list[tuple[Manifest, list[Source]]] = []

        def sources(manifest: Manifest) -> list[Source]:
            if not opened or opened[-1][0] is not manifest:
                opened[:] = [(manifest, self._open_runs.sources(manifest, self.schema.table, groups, now_ms=now_ms))]
            return opened[-1][1]

        return sources

    def _groups_of(self, hashes: np.ndarray) -> GroupRanges | None:
        """The key groups of these hashes, where there are so many runs that opening all of them costs more than telling."""
        if len(self._manifest.runs.get(self.schema.table, ())) < INDEXED:
            return None
        wanted = np.zeros(self._manifest.key_groups, bool)
        wanted[key_group(hashes, len(wanted))] = True
        return from_mask(wanted)

    def _check_groups(self, groups: GroupRanges) -> None:
        for low, high in groups:
            if not 0 <= low < high <= self._manifest.key_groups:
                raise BadInput(f"key groups {low} to {high} do not exist: there are {self._manifest.key_groups}")

    def _sub_range(self, times: tuple[int, int] | None) -> tuple[int, int] | None:
        if times is None:
            return None
        if self.schema.shape != "time":
            raise BadInput(f"table {self.schema.table} is not in time order: scan it without times and filter")
        return layout.sub_of_time(times[0]), layout.sub_of_time(times[1])

    def _lookup_keys(self, keys: pa.Table | pa.RecordBatch) -> LookupKeys:
        keys = keys if isinstance(keys, pa.Table) else pa.Table.from_batches([keys])
        names = set(keys.column_names)
        missing = [field.name for field in self.schema.keys if field.name not in names]
        if missing:
            raise SchemaMismatch(f"table {self.schema.table}: key column {missing[0]!r} is missing from the keys to look up")
        columns = normalize_keys([cast_column(self.schema, keys, field) for field in self.schema.keys])
        hashes = hashes_of(self.schema.table, keys, columns).to_numpy()
        looked_up = [field for field in self.schema.subkeys if field.name in names]
        if not looked_up:
            return LookupKeys(columns, hashes)
        if len(looked_up) != len(self.schema.subkeys):
            raise SchemaMismatch(f"table {self.schema.table}: give all of its sub-key columns to look up, or none")
        subkeys = [cast_column(self.schema, keys, field) for field in looked_up]
        if self.schema.shape == "hashed":
            subkeys = normalize_keys(subkeys)
            return LookupKeys(columns, hashes, hash_columns(subkeys), tuple(subkeys))
        return LookupKeys(columns, hashes, layout.sub_from_integers(subkeys[0], looked_up[0], self.schema.table))

    def _logical(self, rows: pa.Table, columns: Sequence[str] | None, expiries: bool) -> pa.Table:
        return logical(self.schema, rows, columns, expiries)


class Snapshot:
    """A store at one epoch. As a context manager it lets go of its pin, if it has one, at the end."""

    def __init__(self, manifest: Manifest, open_runs: OpenRuns, history: History, pin: Pin | None = None) -> None:
        self._open_runs = open_runs
        self._history = history
        self._files = SnapshotFiles(manifest, open_runs, history, pin)

    @property
    def manifest(self) -> Manifest:
        """The manifest of its epoch. A compaction may replace it by one with the same rows in other runs."""
        return self._files.manifest

    @property
    def pin(self) -> Pin | None:
        """What keeps garbage collection from its files; None if it is not pinned."""
        return self._files.pin

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
        return self.manifest.epoch

    @property
    def tables(self) -> tuple[str, ...]:
        """Their names, with states as their users call them."""
        return tuple(sorted(map(self._names.table, self.manifest.schemas)))

    def table(self, name: str) -> TableView:
        """A table as users know it: the states and keys of a PySpark processor have the names that it gave them.

        ``name`` is one of ``tables``, or that of a state with a table of its own that only one operator has.
        """
        stored = self._names.stored(name, self.manifest.schemas)
        return self._view(self._names.schema(self._schema(name if stored is None else stored)))

    def stored(self, name: str, later: TableSchema | None = None) -> TableView:
        """A table with the names that it has in the log: what operators work with. ``later``: as a later schema of it has it."""
        return self._view(self._schema(name) if later is None else recorded(later))

    def task_reads(self, groups: GroupRanges) -> TaskReads:
        """Fetches in the background what a task of these key groups will read."""
        return TaskReads(self._files, self._open_runs, self._history.settings, groups)

    def _view(self, schema: TableSchema) -> TableView:
        return TableView(self._files, schema, self._open_runs, self._history)

    def _schema(self, name: str) -> TableSchema:
        schema = self.manifest.schema(name)
        if schema is None:
            there = ", ".join(self.tables) or "none"
            raise BadInput(f"there is no table {name!r} at epoch {self.epoch}{self._hint(name)}; there are: {there}")
        return recorded(schema)

    def _hint(self, name: str) -> str:
        """Where else it is: states with one value per key are columns of one table."""
        schemas = [self._names.schema(versions[-1]) for versions in self.manifest.schemas.values()]
        having = [schema.table for schema in schemas if any(field.name == name for field in schema.values)]
        return f": {name} is a column of {self._names.table(having[0])}" if len(having) == 1 else ""

    @property
    def _names(self) -> UserNames:
        return UserNames(self.manifest.definitions)

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release its pin, if it has one."""
        if self.pin is not None:
            self.pin.close()
