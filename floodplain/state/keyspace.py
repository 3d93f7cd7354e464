"""The keys that one task handles in one epoch, and their state as it stood before the epoch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.store.layout import HASH, at_rows
from floodplain.store.lookup import Footprint
from floodplain.store.task import TaskWriter
from floodplain.store.view import Lookup, Snapshot


@dataclass(frozen=True, slots=True)
class KeySpace:
    """Distinct keys, numbered. Everything that handles keep is indexed by that number."""

    keys: pa.Table
    """One row per key, under the names that tables use."""
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    def needles(self) -> pa.Table:
        return self.keys.append_column(HASH, pa.array(self.hashes))

    def at(self, numbers: np.ndarray) -> pa.Table:
        """Keys by number, ready to be written."""
        return at_rows(self.needles(), numbers)


class TableCursor:
    """One table as a task sees it: read once for all keys when first needed, written at the end."""

    def __init__(self, name: str, space: KeySpace, snapshot: Snapshot, writer: TaskWriter, now_ms: Mapping[str, int]) -> None:
        self.name = name
        self.space = space
        self.schema = writer.schema(name)
        self.now_ms = now_ms[self.schema.ttl_clock]
        self.prefetch_bytes = writer.settings.prefetch_bytes
        self._snapshot = snapshot
        self._writer = writer
        self._columns = [field.name for field in (*self.schema.subkeys, *self.schema.values)] or None
        """What is read. The keys are known."""
        self._lookup: Lookup | None = None
        self._aligned: pa.Table | None = None

    def lookup(self) -> Lookup:
        """All rows of all keys of the task."""
        if self._lookup is None:
            self._lookup = self._read(self.space.needles())
        return self._lookup

    def lookup_of(self, numbers: np.ndarray, now_ms: int | None = None) -> Lookup:
        """All rows of these keys; a row's needle is a place in ``numbers``. ``now_ms``, if given, decides what has expired."""
        return self._read(self.space.at(numbers), now_ms)

    def pieces(self, number: int) -> Iterator[pa.Table]:
        """All rows of one key, in bounded pieces."""
        return self._snapshot.table(self.name).pieces(self.space.at(np.array([number])), now_ms=self.now_ms)

    def footprint(self) -> Footprint:
        """How much the task's keys hold, as far as it is known without reading."""
        return self._snapshot.table(self.name).footprint(self.space.hashes)

    def aligned(self) -> pa.Table:
        """Of a value table: one row per key of the task, null where there is none."""
        if self._aligned is None:
            self._aligned = self.lookup().aligned()
        return self._aligned

    def entries(self, numbers: np.ndarray, subkeys: Mapping[str, pa.Array]) -> Lookup:
        """Only these entries: entry i belongs to key ``numbers[i]``."""
        needles = self.space.at(numbers)
        for name, values in subkeys.items():
            needles = needles.append_column(name, values)
        return self._read(needles)

    def _read(self, needles: pa.Table, now_ms: int | None = None) -> Lookup:
        now_ms = self.now_ms if now_ms is None else now_ms
        return self._snapshot.table(self.name).multi_get(needles, columns=self._columns, now_ms=now_ms, expiries=True)

    def write(self, rows: pa.Table, op: str) -> None:
        self._writer.write(self.name, rows, op)

    def write_at(self, numbers: np.ndarray, columns: Mapping[str, pa.Array], op: str) -> None:
        """Rows for these keys, with these further columns."""
        rows = self.space.at(numbers)
        for name, values in columns.items():
            rows = rows.append_column(name, values)
        self.write(rows, op)
