"""Where the kit meets PySpark: what it takes of a ``StatefulProcessor``, with nothing of PySpark loaded before there is one."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.kernel.process import Process
from floodplain.state.frames import as_table, is_frame

Columns: TypeAlias = str | pa.Schema | Any
"""Columns as Spark DDL or as an Arrow schema; for a ``StatefulProcessor`` also a ``StructType``, which has no name here."""

_ADAPTER = "floodplain.spark.transform_with_state.kit"
_PYSPARK = ("pyspark.sql.streaming.stateful_processor", "StatefulProcessor")


class StatefulProcessor(Protocol):
    """PySpark's class of this name, as far as a type checker must know it."""

    def init(self, handle: Any, /) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timers: Any, /) -> Any: ...  # noqa: N802


class SparkOptions(NamedTuple):
    """What ``transformWithState`` is told besides rows and keys."""

    output: Columns | None = None
    time_mode: str = "None"
    pandas: bool = False
    initial_state: Columns | None = None
    output_time: str | None = None


def bound_to(
    process: Any, rows: Columns, keys: Sequence[str], event_time: str | None, options: SparkOptions
) -> tuple[Process, Columns, Any]:
    """The process function to run, the columns of its rows, and, of a ``StatefulProcessor``, what reaches its state by key."""
    if _is_stateful_processor(process):
        adapted = import_module(_ADAPTER).kit_process(process, rows, keys, event_time, **options._asdict())
        return adapted, adapted.rows, adapted
    set_options = [name for name, value in options._asdict().items() if value != SparkOptions._field_defaults[name]]
    if set_options:
        raise BadInput(f"{', '.join(set_options)}: only for a StatefulProcessor; omit it for {type(process).__name__}")
    return process, rows, None


def _is_stateful_processor(process: object) -> bool:
    kind = process if isinstance(process, type) else type(process)
    return any((base.__module__, base.__name__) == _PYSPARK for base in kind.__mro__)


def as_dicts(rows: Any) -> list[Any]:
    """Rows of PySpark and of data frames as dicts; others as they are."""
    return as_table(rows).to_pylist() if is_frame(rows) else [row.asDict(True) if hasattr(row, "asDict") else row for row in rows]
