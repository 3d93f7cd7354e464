"""Floodplain: elastic, tiered, versioned state for PySpark streams. This is the public API, and nothing else."""

from importlib import import_module as _import_module
from typing import Any as _Any

from floodplain.errors import (
    AlreadyExists,
    BadInput,
    BadName,
    Conflict,
    Corrupt,
    Fenced,
    FloodplainError,
    LeaseHeld,
    MergeUnavailable,
    NotFound,
    Refused,
    SchemaMismatch,
    SnapshotExpired,
    StoreNotFound,
    Unavailable,
    UnsafeStore,
    UserError,
)
from floodplain.operators.kit import ProcessKit
from floodplain.operators.process import KeyedBatchProcess, KeyedProcess
from floodplain.settings import CacheSettings, RetentionSettings, RetrySettings, StoreSettings
from floodplain.state.descriptors import Aggregating, List, Map, Reducing, Set, Timers, Value
from floodplain.store.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.epoch import Epoch
from floodplain.store.folds import register_merge
from floodplain.store.store import Store, Writer
from floodplain.store.verify import Verdict
from floodplain.store.view import Lookup, Snapshot, TableView

open = Store.open  # noqa: A001 — read as fp.open(path), never imported by name


def __getattr__(name: str) -> _Any:
    """What needs PySpark is loaded when it is first asked for: the store works without."""
    if name in ("Query", "stream"):
        return getattr(_import_module("floodplain.spark.pipeline"), name)
    raise AttributeError(f"module 'floodplain' has no attribute {name!r}")


__all__ = [
    "Aggregating",
    "AlreadyExists",
    "BadInput",
    "BadName",
    "CacheSettings",
    "Column",
    "Conflict",
    "Corrupt",
    "Epoch",
    "Fenced",
    "FloodplainError",
    "KeyedBatchProcess",
    "KeyedProcess",
    "LeaseHeld",
    "List",
    "Lookup",
    "Map",
    "MergeUnavailable",
    "NotFound",
    "ProcessKit",
    "Query",
    "Reducing",
    "Refused",
    "RetentionSettings",
    "RetrySettings",
    "SchemaMismatch",
    "Set",
    "Snapshot",
    "SnapshotExpired",
    "Store",
    "StoreNotFound",
    "StoreSettings",
    "TableView",
    "Timers",
    "Unavailable",
    "UnsafeStore",
    "UserError",
    "Value",
    "Verdict",
    "Writer",
    "list_table",
    "map_table",
    "open",
    "register_merge",
    "stream",
    "timer_table",
    "value_table",
]
