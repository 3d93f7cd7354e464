"""Where Spark's worker cuts the rows of a key: by rows, and for frames also by bytes."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.store.rows.layout import one_array

MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = 2**31 - 1


def most_rows(settings: Mapping[str, str]) -> int:
    """Of a batch. Zero or less is no limit."""
    most = int(settings.get(MOST_ROWS, 10_000))
    return most if most > 0 else _NO_LIMIT


class Chunks:
    """Cuts by the number of rows, and by their bytes: as the average of all batches that Spark has sent by then has it.

    ``parts``: the rows of a task in the order in which Spark sends them. No batch has rows of two parts.
    """

    def __init__(self, settings: Mapping[str, str], parts: Sequence[pa.Table]) -> None:
        self._most_rows = most_rows(settings)
        self._most_bytes = int(settings.get(MOST_BYTES, 64 << 20))
        self._ends: list[int] = []
        """Of the batches, among the rows of all parts."""
        self._averages: list[float] = []
        if self._most_bytes != _NO_LIMIT:
            self._send(parts)

    def cut(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The chunks of the rows of a key: from and up to which row of all parts."""
        while low < high:
            end = min(self._end(low), high)
            yield low, end
            low = end

    def _end(self, low: int) -> int:
        full = low + self._most_rows
        for at in range(bisect_left(self._ends, low + 1), len(self._ends)):
            before = self._ends[at - 1] if at else 0
            rows = max(-(-self._most_bytes // self._averages[at]), before + 1 - low) if self._averages[at] else _NO_LIMIT
            if low + rows <= min(self._ends[at], full):
                return low + int(rows)
            if self._ends[at] >= full:
                break
        return full

    def _send(self, parts: Sequence[pa.Table]) -> None:
        """Plays how the JVM fills batches."""
        sent_rows = sent_bytes = 0
        for part in parts:
            columns = [one_array(column) for column in part.columns]
            start = 0
            while start < len(part):
                rows = self._batch_rows(columns, start, len(part) - start)
                sent_rows, start = sent_rows + rows, start + rows
                sent_bytes += sum(_bytes(column.slice(start - rows, rows), written=False) for column in columns)
                self._ends.append(sent_rows)
                self._averages.append(sent_bytes / sent_rows)

    def _batch_rows(self, columns: Sequence[pa.Array], start: int, left: int) -> int:
        def size(rows: int) -> int:
            return sum(_bytes(column.slice(start, rows), written=True) for column in columns)

        most = min(left, self._most_rows)
        return min(1 + bisect_left(range(1, most + 1), self._most_bytes, key=size), most)


def _bytes(array: pa.Array, *, written: bool) -> int:
    """The bytes of its buffers. The JVM writes a bitmap of nulls in any case; one without nulls is not read."""
    rows, kind = len(array), array.type
    bits = -(-rows // 8)
    size = bits if written or array.null_count else 0
    if pa.types.is_struct(kind):
        return size + sum(_bytes(array.field(at), written=written) for at in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return size + 4 * (rows + 1) + _bytes(_entries(array), written=written)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return size + 4 * (rows + 1) + (pc.sum(pc.binary_length(array)).as_py() or 0)
    if pa.types.is_null(kind):
        return 0
    return size + (bits if pa.types.is_boolean(kind) else rows * kind.bit_width // 8)


def _entries(array: pa.Array) -> pa.Array:
    """The elements of lists, the entries of maps."""
    if not pa.types.is_map(array.type):
        return array.flatten()
    offsets = array.offsets
    return array.values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()) if len(array) else array.values
