"""Output kept in the driver's memory."""

from collections.abc import Sequence

import pyarrow as pa

from floodplain.sinks.base import Sink
from floodplain.sinks.staged import read_staged
from floodplain.tiers.blobs import Blobs


class MemorySink(Sink):
    """Keeps the output in the driver, for notebooks and tests. It is lost when the process ends."""

    def __init__(self) -> None:
        self._epochs: dict[int, pa.Table] = {}
        self._schema = pa.schema([])

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:  # noqa: ARG002
        self._schema = schema

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        self._schema = schema
        self._epochs[epoch] = read_staged(staged, blobs, schema)

    def table(self) -> pa.Table:
        """All output so far, in the order of epochs. Columns that rows did not have when they came are null in them."""
        epochs = (self._epochs[epoch] for epoch in sorted(self._epochs))
        return pa.concat_tables([self._schema.empty_table(), *epochs], promote_options="permissive")
