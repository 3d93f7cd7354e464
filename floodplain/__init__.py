"""Floodplain: elastic, tiered, versioned state for PySpark streams. This is the public API, and nothing else."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING
from typing import Any as _Any

from floodplain.errors import (
    AlreadyExists,
    BadInput,
    BadName,
    Conflict,
    Corrupt,
    Fenced,
    FloodplainError,
    IncompatibleChange,
    LeaseHeld,
    MergeUnavailable,
    NewerFormat,
    NoSpace,
    NoSuchMethod,
    NotFound,
    NotNative,
    Refused,
    SchemaMismatch,
    SnapshotExpired,
    StoreNotFound,
    Unavailable,
    UnsafeStore,
    UserError,
)
from floodplain.eventtime.options import ingestion_time
from floodplain.eventtime.windows import (
    count_window,
    every,
    every_epoch,
    every_rows,
    global_window,
    session,
    sliding,
    tumbling,
)
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.functions import (
    approx_count_distinct,
    approx_quantile,
    avg,
    collect,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004 — read as fp.max
    max_by,
    min,  # noqa: A004
    min_by,
    sum,  # noqa: A004
    top_k,
)
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext, Context, EpochContext, OpenContext
from floodplain.operators.kernel.event_order import in_order
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.operators.kernel.row_cursor import Row
from floodplain.operators.kernel.segments import Groups
from floodplain.prices import Prices
from floodplain.runtime.live.operation import (
    ControlContext,
    ControlOperation,
    Rescale,
    SlotContext,
    SlotState,
    Tag,
    Update,
)
from floodplain.settings import CacheSettings, CompactionSettings, RetentionSettings, RetrySettings, StoreSettings, Workers
from floodplain.sinks.base import Sink
from floodplain.sinks.row_checks import RowCheck
from floodplain.sinks.staged import read_staged, staged_batches
from floodplain.state.descriptors import Aggregating, Broadcast, List, Map, Reducing, Set, TaskValue, Timers, Value
from floodplain.store.read.snapshot import Lookup, Snapshot, TableView
from floodplain.store.rollback import RolledBack
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.rows.merge_functions import register_merge
from floodplain.store.store import Store, Writer
from floodplain.store.verify import Verdict
from floodplain.store.write.epoch import Epoch
from floodplain.testing.process_kit import ProcessKit
from floodplain.tiers.blobs import Blobs

if TYPE_CHECKING:
    from floodplain.pipeline.stream import Stream
    from floodplain.spark.checkpoint_import.api import ImportedCheckpoint, import_spark_checkpoint
    from floodplain.spark.runtime import Query, stream
    from floodplain.spark.state_reader.registration import register_state_sources
    from floodplain.spark.transform_with_state.api import transform_with_state, transform_with_state_in_pandas
    from floodplain.testing.faults import Crashed, CrashPoint
    from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash

open = Store.open  # noqa: A001 — read as fp.open(path), never imported by name


_LATER = {
    "CrashPoint": "floodplain.testing.faults",
    "Crashed": "floodplain.testing.faults",
    "ImportedCheckpoint": "floodplain.spark.checkpoint_import.api",
    "KitEpoch": "floodplain.testing.pipeline_kit",
    "PipelineKit": "floodplain.testing.pipeline_kit",
    "Query": "floodplain.spark.runtime",
    "Stream": "floodplain.pipeline.stream",
    "import_spark_checkpoint": "floodplain.spark.checkpoint_import.api",
    "register_state_sources": "floodplain.spark.state_reader.registration",
    "stream": "floodplain.spark.runtime",
    "survives_every_crash": "floodplain.testing.pipeline_kit",
    "transform_with_state": "floodplain.spark.transform_with_state.api",
    "transform_with_state_in_pandas": "floodplain.spark.transform_with_state.api",
}


def __getattr__(name: str) -> _Any:
    """What needs PySpark is loaded when it is first asked for: the store works without."""
    if name in _LATER:
        return getattr(_import_module(_LATER[name]), name)
    raise AttributeError(f"module 'floodplain' has no attribute {name!r}")


__all__ = [
    "Aggregate",
    "Aggregating",
    "AlreadyExists",
    "BadInput",
    "BadName",
    "Batch",
    "BatchContext",
    "Blobs",
    "Broadcast",
    "CacheSettings",
    "Column",
    "CompactionSettings",
    "Conflict",
    "Context",
    "ControlContext",
    "ControlOperation",
    "Corrupt",
    "CrashPoint",
    "Crashed",
    "Epoch",
    "EpochContext",
    "Fenced",
    "FloodplainError",
    "Groups",
    "ImportedCheckpoint",
    "IncompatibleChange",
    "KeyedBatchProcess",
    "KeyedProcess",
    "KitEpoch",
    "LeaseHeld",
    "List",
    "Lookup",
    "Map",
    "MergeUnavailable",
    "NewerFormat",
    "NoSpace",
    "NoSuchMethod",
    "NotFound",
    "NotNative",
    "OpenContext",
    "PipelineKit",
    "Prices",
    "ProcessKit",
    "Query",
    "Reducing",
    "Refused",
    "Rescale",
    "RetentionSettings",
    "RetrySettings",
    "RolledBack",
    "Row",
    "RowCheck",
    "SchemaMismatch",
    "Set",
    "Sink",
    "SlotContext",
    "SlotState",
    "Snapshot",
    "SnapshotExpired",
    "Store",
    "StoreNotFound",
    "StoreSettings",
    "Stream",
    "TableView",
    "Tag",
    "TaskValue",
    "Timers",
    "Unavailable",
    "UnsafeStore",
    "Update",
    "UserError",
    "Value",
    "Verdict",
    "Workers",
    "Writer",
    "approx_count_distinct",
    "approx_quantile",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "count_window",
    "every",
    "every_epoch",
    "every_rows",
    "first",
    "fold_changes",
    "global_window",
    "import_spark_checkpoint",
    "in_order",
    "ingestion_time",
    "last",
    "list_table",
    "map_table",
    "max",
    "max_by",
    "min",
    "min_by",
    "open",
    "read_staged",
    "register_merge",
    "register_state_sources",
    "session",
    "sliding",
    "staged_batches",
    "stream",
    "sum",
    "survives_every_crash",
    "timer_table",
    "top_k",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "tumbling",
    "value_table",
]
