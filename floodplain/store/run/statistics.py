"""Statistics of a run, collected while it is written."""

from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.store.rows import layout
from floodplain.store.rows.layout import CLEAR, DELETE, EXPIRES, MERGE, OP, PUT
from floodplain.store.rows.row_classes import starts_of
from floodplain.versions.records.schema import TableSchema


class Piece:
    """Rows that become chunks of their own."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size_bytes = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.size_bytes += batch.nbytes
        self.rows += len(batch)

    def joined(self, other: "Piece") -> "Piece":
        for batch in other.batches:
            self.add(batch)
        return self


class Chunks:
    """The footer's columns about the chunks."""

    _NAMES = ("first", "first_sub", "last", "last_sub", "offset", "length", "count", "checksum", "decoded")

    def __init__(self, end: int) -> None:
        self.end = end
        """Where the next one begins."""
        self._rows: list[tuple[int, ...]] = []

    def add(self, bounds: tuple[int, int, int, int], count: int, checksum: int, decoded_bytes: int, end: int) -> None:
        self._rows.append((*map(int, bounds), self.end, end - self.end, count, checksum, decoded_bytes))
        self.end = end

    def columns(self) -> dict[str, bytes]:
        table = np.array(self._rows, "<u8").reshape(-1, len(self._NAMES))
        return {name: table[:, number].tobytes() for number, name in enumerate(self._NAMES)}


class Facts:
    """What the manifest keeps of a run for readers and the compaction policy, so that they need not open it."""

    def __init__(self, schema: TableSchema) -> None:
        self.rows = 0
        self.unique = True
        self.groups: set[int] = set()
        self._lasting = bool(schema.ttl_ms)
        self._ends = [EXPIRES] if schema.ttl_ms else []
        self._ends += [layout.expires_column(field) for field in schema.values if field.ttl_ms]
        self._before: np.uint64 | None = None
        self._deletes = self._merges = False
        self._first_ms = layout.NEVER
        self._last_ms: int | None = None

    def add(self, batch: pa.RecordBatch, hashes: np.ndarray, groups: np.ndarray) -> None:
        """``groups``: those that it has rows of."""
        self.rows += len(batch)
        self.unique = bool(self.unique and starts_of(hashes).all() and hashes[0] != self._before)
        self._before = hashes[-1]
        self.groups.update(groups.tolist())
        op = layout.numbers(batch, OP)
        self._deletes |= bool(((op == DELETE) | (op == CLEAR)).any())
        self._merges |= bool((op == MERGE).any())
        for name in self._ends:
            self._first_ms = min(self._first_ms, int(layout.expiries(batch, name).min()))
        if self._lasting and (lasting := (op == PUT) | (op == MERGE)).any():
            last_ms = int(layout.expiries(batch, EXPIRES)[lasting].max())
            self._last_ms = last_ms if self._last_ms is None else max(last_ms, self._last_ms)

    def traits(self) -> dict[str, Any]:
        traits: dict[str, Any] = {"deletes": self._deletes, "merges": self._merges}
        if self._first_ms < layout.NEVER:
            traits["first_expiry_ms"] = max(self._first_ms, 1)
        if self._last_ms is not None:
            traits["last_expiry_ms"] = max(self._last_ms, 1) if self._last_ms < layout.NEVER else 0
        return traits
