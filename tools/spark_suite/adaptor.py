"""Spark's tests on the drop-in: replaces the two entry points and the two format names, and nothing else."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from pyspark.sql import DataFrameReader, GroupedData

import floodplain as fp

FORMATS = {"statestore": "floodplain-statestore", "state-metadata": "floodplain-state-metadata"}

_within: ContextVar[bool] = ContextVar("within", default=False)
"""Whether the drop-in is at work: it has Spark plan the same call, by the methods that are replaced."""


def adapt() -> None:
    """From now on this process runs ``transformWithState`` on Floodplain."""
    methods: Any = GroupedData
    methods.transformWithState = _replaced(GroupedData.transformWithState, fp.transform_with_state)
    methods.transformWithStateInPandas = _replaced(GroupedData.transformWithStateInPandas, fp.transform_with_state_in_pandas)
    reader: Any = DataFrameReader
    reader.format = _renamed(DataFrameReader.format)


def _replaced(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(grouped: GroupedData, *args: Any, **kwargs: Any) -> Any:
        if _within.get():
            return original(grouped, *args, **kwargs)
        token = _within.set(True)
        try:
            return ours(grouped, *args, **kwargs)
        finally:
            _within.reset(token)

    return call


def _renamed(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(reader: DataFrameReader, source: str) -> Any:
        return original(reader, FORMATS.get(source, source))

    return call
