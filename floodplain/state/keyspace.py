"""The keys of one task in one epoch, and cursors on their tables as of the start of the epoch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.state.descriptors import EVENT_TIME
from floodplain.store.read.lookup import Footprint
from floodplain.store.read.snapshot import Lookup, Snapshot
from floodplain.store.rows.layout import BEGINNING, EXPIRES, HASH, append_columns, at_rows
from floodplain.store.write.task_writer import TaskWriter


@dataclass(frozen=True, slots=True)
class KeySpace:
    """Distinct keys, numbered. Handles index their values by key number."""

    keys: pa.Table
    """One row per key, with the column names of tables."""
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    def lookup_keys(self) -> pa.Table:
        return self.keys.append_column(HASH, pa.array(self.hashes))

    def at(self, numbers: np.ndarray, more: Mapping[str, pa.Array] | None = None) -> pa.Table:
        """The keys with these numbers and further columns, ready to be written."""
        return append_columns(at_rows(self.lookup_keys(), numbers), more or {})


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks that expire the state of a task's keys."""

    now_ms: Mapping[str, int]
    """Clock → the time up to which entries are expired."""
    newest_ms: Callable[[], np.ndarray]
    """Per key, the newest event time among its rows; ``BEGINNING`` if there is none."""
    lateness_ms: int = 0
    """The allowed lateness: the operator's watermark is this much behind that of the store."""


class TableCursor:
    """One table of a task: read once for all keys when first needed, written at the end."""

    def __init__(self, name: str, space: KeySpace, snapshot: Snapshot, writer: TaskWriter, clocks: Clocks) -> None:
        self.name = name
        self.space = space
        self.schema = writer.schema(name)
        self.now_ms = clocks.now_ms[self.schema.ttl_clock]
        self.by_event_time = self.schema.ttl_clock == EVENT_TIME
        self.lateness_ms = clocks.lateness_ms if self.by_event_time else 0
        self._newest_ms = clocks.newest_ms
        self.prefetch_bytes = writer.settings.prefetch_bytes
        self._snapshot = snapshot
        self._writer = writer
        self._columns = [field.name for field in (*self.schema.subkeys, *self.schema.values)] or None
        """The columns to read: all but the keys, which are known."""
        self.was_read = False
        """Whether all rows of any key were looked up."""
        self.was_read_by_rows = False
        """Whether the entries that rows name were looked up."""
        self._lookup: Lookup | None = None
        self._aligned: pa.Table | None = None

    def lookup(self) -> Lookup:
        """All rows of all keys of the task."""
        if self._lookup is None:
            self.was_read = True
            self._lookup = self._read(self.space.lookup_keys())
        return self._lookup

    def lookup_of(self, numbers: np.ndarray) -> Lookup:
        """All rows of these keys; ``key_number`` of the lookup is an index into ``numbers``."""
        self.was_read = True
        return self._read(self.space.at(numbers))

    def before_expiry(self, numbers: np.ndarray) -> Lookup | None:
        """As ``lookup_of``, with rows that have expired since the last epoch, and expiry times; None if there are none."""
        manifest = self._snapshot.manifest
        before_ms = manifest.watermarks.get(self.schema.ttl_clock, BEGINNING)
        runs = manifest.runs.get(self.name, ())
        if not any(0 < run.first_expiry_ms <= self.now_ms and not 0 < run.last_expiry_ms <= before_ms for run in runs):
            return None
        return self._snapshot.stored(self.name).multi_get(self.space.at(numbers), columns=self._columns, expiries=True)

    def pieces(self, number: int) -> Iterator[pa.Table]:
        """All rows of one key, in bounded pieces."""
        return self._snapshot.stored(self.name).pieces(self.space.at(np.array([number])), now_ms=self.now_ms)

    def footprint(self) -> Footprint:
        """The size of the keys' rows, as far as it is known without reading them."""
        return self._snapshot.stored(self.name).footprint(self.space.hashes)

    def aligned(self) -> pa.Table:
        """One row per key of the task, null where a key has none. Requires: a value table."""
        if self._aligned is None:
            self._aligned = self.lookup().aligned()
        return self._aligned

    def entries(self, numbers: np.ndarray, subkeys: Mapping[str, pa.Array]) -> Lookup:
        """These entries only: entry i is of key ``numbers[i]``."""
        return self._read(self.space.at(numbers, subkeys))

    def _read(self, lookup_keys: pa.Table) -> Lookup:
        return self._snapshot.stored(self.name).multi_get(lookup_keys, columns=self._columns, now_ms=self.now_ms, expiries=True)

    def ends(self, numbers: np.ndarray, ttl_ms: int, before: pa.Array | None = None) -> pa.Array:
        """The expiry times of entries that are written now for these keys, at least ``before``.

        By event time, the ttl starts at the newest row of the key, or at the watermark if that is later: an epoch may be longer
        than the ttl. Without both, the entry does not expire.
        """
        if not self.by_event_time:
            return pa.repeat(pa.scalar(self.now_ms + ttl_ms, pa.int64()), len(numbers))
        watermark_ms = self._writer.clock_ms(self.name)
        floor_ms = BEGINNING if watermark_ms is None else watermark_ms - self.lateness_ms
        since = np.maximum(self._newest_ms()[numbers], floor_ms)
        ends = np.where(since == BEGINNING, BEGINNING, since + ttl_ms + self.lateness_ms)
        if before is not None:
            ends = np.maximum(ends, before.fill_null(BEGINNING).to_numpy(zero_copy_only=False))
        return pa.array(ends, mask=ends == BEGINNING)

    def write_at(self, numbers: np.ndarray, columns: Mapping[str, pa.Array], op: str) -> None:
        """Writes rows for these keys with these further columns."""
        if op == "put" and self.schema.ttl_ms and self.by_event_time and EXPIRES not in columns:
            columns = {**columns, EXPIRES: self.ends(numbers, self.schema.ttl_ms)}
        self._writer.write(self.name, self.space.at(numbers, columns), op)
