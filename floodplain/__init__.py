"""Floodplain: elastic, tiered, versioned state for PySpark streams. This is the public API, and nothing else."""

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
)
from floodplain.settings import CacheSettings, RetentionSettings, RetrySettings, StoreSettings
from floodplain.state.descriptors import Aggregating, List, Map, Reducing, Set, Timers, Value
from floodplain.store.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.epoch import Epoch
from floodplain.store.folds import register_merge
from floodplain.store.store import Store, Writer
from floodplain.store.verify import Verdict
from floodplain.store.view import Lookup, Snapshot, TableView

open = Store.open  # noqa: A001 — read as fp.open(path), never imported by name

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
    "LeaseHeld",
    "List",
    "Lookup",
    "Map",
    "MergeUnavailable",
    "NotFound",
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
    "Value",
    "Verdict",
    "Writer",
    "list_table",
    "map_table",
    "open",
    "register_merge",
    "timer_table",
    "value_table",
]
