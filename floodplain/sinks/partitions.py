"""Rows of a file by the values of some columns, and the folders that they go to: ``day=2026-11-01/hour=12``, as Hive has them.

Spark and Arrow find the columns again in the names of the folders, so the files do not have them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch, short
from floodplain.operators.kernel.key_grouping import group
from floodplain.sinks.row_checks import RowCheck, value_of

NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null, and for the empty text, which no name of a folder can tell from it."""
NAME_BYTES = 255
"""Of a file or folder, on the file systems that there are."""
PATH_BYTES = 4095
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""What Spark escapes, too. It takes what is escaped for one character each, so others must stay."""


def partition_columns(by: str | Sequence[str]) -> tuple[str, ...]:
    """The columns that were asked for."""
    found = (by,) if isinstance(by, str) else tuple(by)
    if len(set(found)) < len(found) or not all(isinstance(name, str) and name for name in found):
        raise BadInput(f"partition_by={by!r}: give names of columns, each once, as in partition_by=['day', 'hour']")
    return found


def check_partitions(by: Sequence[str], schema: pa.Schema) -> None:
    """Raises unless output with these columns can be parted so."""
    for name in by:
        if not schema.get_all_field_indices(name):
            raise BadInput(f"partition_by: there is no column {name}; there are: {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not any(test(kind) for test in (_is_text, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)):
            raise SchemaMismatch(
                f"partition_by: {name} is {kind}, and folders are named by text, whole numbers, booleans and dates: "
                f"make such a column before, as in with_column('{name}_text', 'cast({name} as string)')"
            )
        if len(_folder(name, NOTHING).encode()) > NAME_BYTES:
            raise BadInput(f"partition_by: the name of column {name} is too long for that of a folder: rename it")
    if len(by) == len(schema):
        raise BadInput("partition_by: all columns would be in the names of folders: leave at least one for the files")


@dataclass(frozen=True, slots=True)
class FolderNames(RowCheck):
    """Values that names of folders can be made of."""

    by: tuple[str, ...]
    most_bytes: int
    """For all of them together."""

    def first_refused(self, rows: pa.Table) -> tuple[int, str] | None:
        """Looks at each combination of values once."""
        grouped = group(rows, {name: name for name in self.by})
        found = []
        for first in grouped.starts.tolist()[:-1]:
            wrong = self._wrong(grouped.take(np.arange(first, first + 1)))
            if wrong is not None:
                found.append((int(grouped.order[first]), wrong))
        return min(found, default=None)

    def _wrong(self, row: pa.Table) -> str | None:
        whole_bytes = 0
        for name in self.by:
            try:
                size_bytes = len(_folder(name, row.column(name)[0].as_py()).encode())
            except (ValueError, OverflowError) as error:
                return f"partition_by: no folder can be named by {short(value_of(row.column(name), 0))} of column {name}: {error}"
            whole_bytes += size_bytes + 1
            if size_bytes > NAME_BYTES:
                return (
                    f"partition_by: the folder for {short(value_of(row.column(name), 0))} of column {name} would have a name of "
                    f"{size_bytes} bytes, and {NAME_BYTES} is the most that a file system takes"
                )
        if whole_bytes > self.most_bytes:
            return (
                f"partition_by: the folders for these values would have names of {whole_bytes} bytes in all, and no more than "
                f"{self.most_bytes} are left for them in a path"
            )
        return None


def parts(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Folder and rows, without these columns, of each combination of values; the same ones in the same order each time."""
    grouped = group(rows, {name: name for name in by})
    for first, end in pairwise(grouped.starts.tolist()):
        found = grouped.take(np.arange(first, end))
        values = found.select(list(by)).slice(0, 1).to_pylist()[0]
        yield "/".join(_folder(name, value) for name, value in values.items()), found.drop_columns(list(by))


def _folder(name: str, value: Any) -> str:
    return f"{_safe(name)}={_value(value)}"


def _value(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    return _safe(str(value).lower() if isinstance(value, bool) else str(value))


def _safe(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
