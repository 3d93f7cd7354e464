"""Converts columns and tables of Arrow, NumPy, Polars and pandas. Polars and pandas are imported only if they are used."""

from importlib import import_module
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.lossless import cast
from floodplain.state.value_check import array_of
from floodplain.store.rows.layout import one_array

FrameLike: TypeAlias = pa.Table | Any
"""An Arrow table, a Polars or a pandas frame. Frames are recognised by their methods: neither library need be installed."""


def as_column(values: Any, type_: pa.DataType) -> pa.Array:
    """One array of this type. Raises one of ``UNFIT`` if a value does not fit."""
    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        if isinstance(values, list | tuple):
            return array_of(values, type_)
        values = pa.array(values, from_pandas=_is_pandas(values))
    return one_array(cast(one_array(values), type_))


def is_frame(values: Any) -> bool:
    """Whether it is a table or a frame."""
    return isinstance(values, pa.Table | pa.RecordBatch) or type(values).__name__ == "DataFrame"


def as_table(frame: Any) -> pa.Table:
    """Requires: ``is_frame(frame)``."""
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame
    return frame.to_arrow() if hasattr(frame, "to_arrow") else pa.Table.from_pandas(frame, preserve_index=False)


def polars_frame(table: pa.Table) -> Any:
    return _module("polars", "polars").from_arrow(table)


def pandas_frame(table: pa.Table) -> Any:
    _module("pandas", "spark")
    return table.to_pandas()


def _is_pandas(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pandas"


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise BadInput(f"{name} is not installed here: pip install 'floodplain[{extra}]'") from error
