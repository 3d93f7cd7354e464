"""A pipeline on the kit whose sinks are the real ones, on a state wherever it is wanted."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from floodplain.pipeline.stream import Output
from floodplain.sinks.base import Sink
from floodplain.testing.faults import CapturedSink, Steps
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tiers.blobs import Blobs


class Teed(CapturedSink):
    """Publishes to a sink, and keeps it."""

    def __init__(self, name: str, steps: Steps, sink: Sink) -> None:
        super().__init__(name, steps)
        self.sink = sink

    def __getattribute__(self, name: str) -> Any:
        if name in ("check", "prepare", "close", "target", "row_check"):
            return getattr(object.__getattribute__(self, "sink"), name)
        return object.__getattribute__(self, name)

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        self.sink.publish(epoch, staged, blobs, schema)
        super().publish(epoch, staged, blobs, schema)


class SinkKit(PipelineKit):
    """``sinks``: by the names of their outlets."""

    def __init__(
        self, build: Callable[..., Output], sink: Sink, *, blobs: Callable[[], Blobs] | None = None, **more: Any
    ) -> None:
        self._sink, self._own = sink, blobs
        super().__init__(build, **more)

    def _captured_sink(self, name: str) -> CapturedSink:
        return self.sinks.setdefault(name, Teed(name, self.steps, self._sink))

    def _blobs(self) -> Blobs:
        return super()._blobs() if self._own is None else self._own()
