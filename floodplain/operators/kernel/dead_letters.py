"""Dead letters: the rows and timers that a process function failed on, in a table next to its state."""

import json
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import short
from floodplain.state.keyspace import KeySpace
from floodplain.state.positions import pack
from floodplain.state.tables import SEPARATOR, free_name
from floodplain.store.rows.definition import list_table
from floodplain.store.write.task_writer import TaskWriter
from floodplain.tiers.paths import checked_name
from floodplain.versions.records.schema import TableSchema

DEAD_LETTERS = "dead_letters"
_POSITION = "position"
_COLUMNS: dict[str, pa.DataType] = {
    "epoch": pa.int64(),
    "at": pa.int64(),  # processing time, in ms
    "row": pa.string(),  # as JSON; null if it was a timer that failed
    "timer": pa.int64(),  # its time in ms; null if it was a row
    "error": pa.string(),
    "message": pa.string(),
    "line": pa.string(),
}
_MOST_TEXT = 10_000
_NAMES = str | int | float | None


def letters_table(operator: str, keys: Mapping[str, pa.DataType]) -> TableSchema:
    """``keys``: the operator's key columns as its tables call them."""
    columns = {free_name(name, keys): type_ for name, type_ in _COLUMNS.items()}
    return list_table(_table(operator), keys, columns, position=free_name(_POSITION, keys))


class DeadLetters:
    """The dead letters of one task in one epoch."""

    def __init__(self, operator: str, space: KeySpace, writer: TaskWriter, at_ms: int) -> None:
        self._operator = operator
        self._space = space
        self._writer = writer
        self._at_ms = at_ms
        self._numbers: list[int] = []
        self._letters: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._letters)

    def add(self, number: int, error: Exception, *, row: Mapping[str, Any] | None = None, timer_ms: int | None = None) -> None:
        """Add a row or a timer of the key with this number."""
        text = None if row is None else json.dumps(_named(row), default=_plain, ensure_ascii=False)
        self._numbers.append(number)
        self._letters.append(
            {
                "epoch": self._writer.epoch,
                "at": self._at_ms,
                "row": text,
                "timer": timer_ms,
                "error": type(error).__name__,
                "message": short(str(error), _MOST_TEXT, quoted=False),
                "line": _line(error),
            }
        )

    def write(self) -> None:
        if not self._letters:
            return
        numbers = np.array(self._numbers)
        taken = self._space.keys.column_names
        columns = {
            free_name(name, taken): pa.array([letter[name] for letter in self._letters], type_)
            for name, type_ in _COLUMNS.items()
        }
        columns[free_name(_POSITION, taken)] = pa.array(pack(self._writer.epoch, _ordinals(numbers)))
        self._writer.write(_table(self._operator), self._space.at(numbers, columns), "put")


def _table(operator: str) -> str:
    return checked_name("table", f"{operator}{SEPARATOR}{DEAD_LETTERS}")


def _ordinals(numbers: np.ndarray) -> np.ndarray:
    """Numbers the letters of each key: 0, 1, 2, …"""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.searchsorted(ordered, ordered)
    ordinals = np.empty(len(numbers), np.int64)
    ordinals[order] = np.arange(len(numbers)) - first
    return ordinals


def _named(value: Any) -> Any:
    """With map keys that JSON allows."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, _NAMES) else _plain(key): _named(one) for key, one in value.items()}
    return list(map(_named, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Values that JSON has no type for: bytes as hexadecimal, times and decimals as text."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _line(error: Exception) -> str | None:
    """The line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    last = frames[-1]
    return f"{PurePath(last.filename).name}:{last.lineno} in {last.name}: {last.line or ''}"
