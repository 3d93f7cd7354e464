"""Nexmark queries on the test kit, without Spark: DuckDB reads the tables, which is the same SQL."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import floodplain as fp
from examples.nexmark.generator import SCHEMA
from examples.nexmark.oracle import Oracle
from examples.nexmark.query import DELAY, Query
from floodplain.state.durations import to_ms

_TYPES = {"int64": "long", "int32": "int", "string": "string", "bool": "boolean"}
_TYPES |= {"timestamp[us]": "timestamp", "timestamp[us, tz=UTC]": "timestamp"}


UTC = pa.timestamp("us", "UTC")


def mean_price(rows: pa.Table) -> pa.Table:
    means = [float(sum(prices) / len(prices)) for prices in rows["prices"].to_pylist()]
    return pa.table({"seller": rows["seller"], "avg_price": pa.array(means, pa.float64())})


TRANSFORMS = {"q6": [mean_price]}
"""What the queries do in Spark, in Arrow."""


def read(query: Query, events: pa.Table) -> pa.Table:
    """What the query reads of these events."""
    found = Oracle(events).sql(query.reads)
    # DuckDB's times have no zone here; they are in UTC.
    return found.cast(pa.schema([(each.name, UTC if each.type == pa.timestamp("us") else each.type) for each in found.schema]))


def kit(query: Query, **options: Any) -> fp.PipelineKit:
    return fp.PipelineKit(
        lambda rows: query.on(rows).write("memory"),
        rows=_ddl(read(query, SCHEMA.empty_table()).schema),
        transforms=TRANSFORMS.get(query.name, ()),
        **options,
    )


def played(
    query: Query, epochs: Sequence[pa.Table], kit: fp.PipelineKit, *, epoch_ms: int = 1000, slots: Sequence[int] = ()
) -> list[pa.Table]:
    """What comes out, epoch by epoch; the watermark of an epoch comes of those before it, as on Spark. With ``slots``, each epoch
    has as many, in turn, and a driver of its own."""
    newest_ms, made = 0, []
    for number, events in enumerate(epochs):
        if slots:
            kit.rescale(slots[number % len(slots)])
            kit.restart()
        watermark_ms = max(newest_ms - to_ms(DELAY, "delay"), 0) if newest_ms and query.time != "arrival" else None
        found = kit.epoch(read(query, events), watermark_ms=watermark_ms, now_ms=number * epoch_ms)
        made.append(pa.Table.from_pylist(found["output"]))
        newest_ms = max(newest_ms, pc.max(pc.cast(events.column("dateTime"), pa.int64())).as_py() // 1000)
    return made


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {_TYPES.get(str(field.type), str(field.type).replace('128', ''))}" for field in schema)
