"""Describes pipelines without Spark: the test kit's stand-ins for DataFrames and for what starts a pipeline on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from floodplain.pipeline.stream import SOURCE, Output, StartOptions, Stream
from floodplain.plan.nodes import Input, Plan
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.runtime.schema_inference import dry_schemas
from floodplain.sinks.base import Sink
from floodplain.sinks.memory import MemorySink
from floodplain.state.types import as_fields
from floodplain.testing.local_engine import LocalEngine

Transforms: TypeAlias = Sequence[Callable[[pa.Table], pa.Table]]
"""For each ``transform`` step in order an equivalent function on Arrow tables."""


@dataclass(frozen=True)
class Columns:
    """A DataFrame's stand-in while the pipeline is described: a schema without rows."""

    schema: pa.Schema
    sparkSession: None = None  # noqa: N815 — as Spark calls it
    """The kit runs without a session."""

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def withWatermark(self, column: str, delay: str) -> "Columns":  # noqa: ARG002, N802 — as Spark calls it
        """Does nothing: the kit computes the watermark itself."""
        return self


@dataclass(frozen=True)
class Described:
    """A pipeline as ``build`` describes it."""

    pipeline: Output
    changes: StartChanges
    transforms: Transforms


class DescribingKit:
    """What ``build`` functions describe their pipelines with."""

    def __init__(self, rows: str | Mapping[str, str], broadcasts: Mapping[str, str] | None) -> None:
        declared = {"": rows} if isinstance(rows, str) else dict(rows)
        self._sources = {tag: Columns(pa.schema(as_fields(columns).items())) for tag, columns in declared.items()}
        self._frames = {name: Columns(pa.schema(as_fields(columns).items())) for name, columns in (broadcasts or {}).items()}
        self._broadcast_names = {id(frame): name for name, frame in self._frames.items()}
        self._transforms: Transforms = ()

    def start(self, stream: Stream, plan: Plan, options: StartOptions) -> None:
        """Called by the pipeline that ``build`` describes."""
        self._last_described = Output(stream, plan.outlets), options.changes

    def _described(self, build: Callable[..., Output], transforms: Transforms, changes: Mapping[str, Any]) -> Described:
        self._transforms = transforms
        build(Stream(self, self._sources, Input(), {}), **self._frames).start(state="memory://kit", **changes)
        return Described(*self._last_described, transforms)

    def _merged_schema(self) -> pa.Schema:
        if "" in self._sources:
            return self._sources[""].schema
        merged = pa.unify_schemas([columns.schema for columns in self._sources.values()])
        return merged.append(pa.field(SOURCE, pa.string()))

    def foreach_batch_sink(self, stream: Stream, function: Callable[[Any, int], None]) -> Sink:  # noqa: ARG002
        """The kit captures the rows and never calls the function."""
        return MemorySink()

    def schemas_of(self, stream: Stream, plan: Plan) -> dict[str, pa.Schema]:
        """Called by ``Stream.schema`` and ``Output.schemas``."""
        inputs = {"": self._merged_schema(), **{tag: frame.schema for tag, frame in stream.broadcasts.items()}}
        empty = {tag: schema.empty_table() for tag, schema in inputs.items()}
        return dry_schemas(plan, LocalEngine(self._transforms, plan), empty)


def timed_by(plan: Plan, sources: Mapping[str, Columns]) -> tuple[str, list[str]] | None:
    """The event-time column and the sources that have it; None if rows do not advance the watermark, or a rule does."""
    if plan.event_time is None or plan.watermark is not None:
        return None
    return plan.event_time, [tag for tag, rows in sources.items() if plan.event_time in rows.columns]
