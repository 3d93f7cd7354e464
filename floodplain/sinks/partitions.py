"""Hive-style partitions of a file: its rows by the values of the partition columns, in folders ``day=2026-11-01/hour=12``.

Spark and Arrow read the partition columns from the names of the folders, so the files do not have them.
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
"""The folder value for null and for the empty text, which the name of a folder cannot distinguish."""
NAME_BYTES = 255
"""The longest name of a file or folder on common file systems."""
PATH_BYTES = 4095
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""The characters that Spark escapes. It unescapes each escape to one character, so no others (of several bytes) are escaped."""


def partition_columns(by: str | Sequence[str]) -> tuple[str, ...]:
    """The names in ``partition_by``. Raises ``BadInput`` for duplicates and for anything but names."""
    names = (by,) if isinstance(by, str) else tuple(by)
    if len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"partition_by={by!r}: pass names of columns, each once, as in partition_by=['day', 'hour']")
    return names


def check_partitions(by: Sequence[str], schema: pa.Schema) -> None:
    """Raises unless output of this schema can be partitioned by these columns."""
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
        raise BadInput("partition_by has all columns, so the files would have none: remove at least one from it")


@dataclass(frozen=True, slots=True)
class FolderNames(RowCheck):
    """Refuses rows whose partition values cannot be the name of a folder."""

    by: tuple[str, ...]
    most_bytes: int
    """The longest path of all folders of a row."""

    def first_refused(self, rows: pa.Table) -> tuple[int, str] | None:
        """Checks each combination of values once."""
        grouped = group(rows, {name: name for name in self.by})
        refused = []
        for first in grouped.starts.tolist()[:-1]:
            reason = self._refusal(grouped.take(np.arange(first, first + 1)))
            if reason is not None:
                refused.append((int(grouped.order[first]), reason))
        return min(refused, default=None)

    def _refusal(self, row: pa.Table) -> str | None:
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


def partitions(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Folder and rows, without the partition columns, of each combination of values. Deterministic, also in order."""
    grouped = group(rows, {name: name for name in by})
    for first, end in pairwise(grouped.starts.tolist()):
        of_partition = grouped.take(np.arange(first, end))
        values = of_partition.select(list(by)).slice(0, 1).to_pylist()[0]
        yield "/".join(_folder(name, value) for name, value in values.items()), of_partition.drop_columns(list(by))


def _folder(name: str, value: Any) -> str:
    return f"{_safe(name)}={_value(value)}"


def _value(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    return _safe(str(value).lower() if isinstance(value, bool) else str(value))


def _safe(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
