"""The bridge: rows of any Spark plan go from map-side tasks straight to the workers that own their slots, without a shuffle.

The tasks own nothing, so they may push. What an attempt pushes carries its name; only what the attempts that won have pushed is
read: Spark itself picks them, by the rows that the job returns.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from floodplain.clock import SystemRandomness
from floodplain.runtime.pieces import Piece, PieceKey
from floodplain.runtime.task_errors import carried, ours
from floodplain.workers.pushing import BridgeOrder, Pusher

_RESULT = "pieces binary"


def bridged(rows: DataFrame, order: BridgeOrder) -> list[Piece]:
    """Runs the job. Returns the pieces of the attempts that won."""
    with ours():
        collected = rows.mapInArrow(partial(_push, order), _RESULT).collect()
    return [piece for row in collected for piece in msgspec.msgpack.decode(row.pieces, type=list[Piece])]


def _push(order: BridgeOrder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    key = PieceKey(order.exchange, context.partitionId(), f"bridge-{context.taskAttemptId()}")
    with carried():
        pieces = Pusher(order, key, SystemRandomness()).push(batches)
    yield pa.record_batch({"pieces": pa.array([msgspec.msgpack.encode(pieces)], pa.binary())})
