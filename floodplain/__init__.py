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
from floodplain.eventtime.options import ingestion_time
from floodplain.operators.kit import ProcessKit
from floodplain.operators.process import KeyedBatchProcess, KeyedProcess
from floodplain.settings import CacheSettings, RetentionSettings, RetrySettings, StoreSettings
from floodplain.state.descriptors import Aggregating, Broadcast, List, Map, Reducing, Set, TaskValue, Timers, Value
from floodplain.store.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.epoch import Epoch
from floodplain.store.folds import register_merge
from floodplain.store.store import Store, Writer
from floodplain.store.verify import Verdict
from floodplain.store.view import Lookup, Snapshot, TableView

open = Store.open  # noqa: A001 — read as fp.open(path), never imported by name


_LATER = {
    "CrashPoint": "floodplain.spark.kit_faults",
    "Crashed": "floodplain.spark.kit_faults",
    "KitEpoch": "floodplain.spark.kit",
    "PipelineKit": "floodplain.spark.kit",
    "Query": "floodplain.spark.pipeline",
    "stream": "floodplain.spark.pipeline",
    "survives_every_crash": "floodplain.spark.kit",
    "transform_with_state": "floodplain.spark.compat",
    "transform_with_state_in_pandas": "floodplain.spark.compat",
}


def __getattr__(name: str) -> _Any:
    """What needs PySpark is loaded when it is first asked for: the store works without."""
    if name in _LATER:
        return getattr(_import_module(_LATER[name]), name)
    raise AttributeError(f"module 'floodplain' has no attribute {name!r}")


__all__ = [
    "Aggregating",
    "AlreadyExists",
    "BadInput",
    "BadName",
    "Broadcast",
    "CacheSettings",
    "Column",
    "Conflict",
    "Corrupt",
    "CrashPoint",
    "Crashed",
    "Epoch",
    "Fenced",
    "FloodplainError",
    "KeyedBatchProcess",
    "KeyedProcess",
    "KitEpoch",
    "LeaseHeld",
    "List",
    "Lookup",
    "Map",
    "MergeUnavailable",
    "NotFound",
    "PipelineKit",
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
    "TaskValue",
    "Timers",
    "Unavailable",
    "UnsafeStore",
    "UserError",
    "Value",
    "Verdict",
    "Writer",
    "ingestion_time",
    "list_table",
    "map_table",
    "open",
    "register_merge",
    "stream",
    "survives_every_crash",
    "timer_table",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "value_table",
]
