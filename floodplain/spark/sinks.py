"""Where output goes once its epoch is committed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from floodplain.errors import BadInput
from floodplain.tiers.blobs import Blobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Sink(ABC):
    """Publishes the staged output of an epoch. May be called again for the last epoch after a crash."""

    @abstractmethod
    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None: ...


class MemorySink(Sink):
    """Keeps the output in the driver, for notebooks and tests. Gone with the process."""

    def __init__(self) -> None:
        self._epochs: dict[int, pa.Table] = {}

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        self._epochs[epoch] = read_staged(staged, blobs, schema)

    def table(self) -> pa.Table:
        """All output so far, by epoch."""
        return pa.concat_tables([self._epochs[epoch] for epoch in sorted(self._epochs)]) if self._epochs else pa.table({})


class ConsoleSink(Sink):
    """Prints the first rows of each epoch."""

    def __init__(self, rows: int = 20) -> None:
        self._rows = rows
        self._console = Console()

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        rows = read_staged(staged, blobs, schema)
        self._console.print(f"epoch {epoch}: {len(rows)} rows")
        self._console.print(rows.slice(0, self._rows).to_pylist())


class ParquetSink(Sink):
    """Files in a directory, named by epoch and place: publishing twice writes the same files. Exactly once for readers."""

    def __init__(self, path: str) -> None:
        if not path:
            raise BadInput('write("parquet") needs a path: write("parquet", path="out")')
        self._root = Path(path)

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:  # noqa: ARG002
        self._root.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(sorted(staged)):
            target = self._root / f"epoch-{epoch:012d}-{number:05d}.parquet"
            temp = self._root / f".{target.name}.tmp"
            temp.write_bytes(blobs.get(name))
            temp.replace(target)


class ForeachBatchSink(Sink):
    """Calls a function with a DataFrame and the epoch. At least once: keep the epoch with what you write to tell a repeat."""

    def __init__(self, function: Callable[["DataFrame", int], None], spark: "SparkSession") -> None:
        self._function = function
        self._spark = spark

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        self._function(self._spark.createDataFrame(read_staged(staged, blobs, schema)), epoch)


def open_sink(format: str, options: Mapping[str, Any]) -> Sink:  # noqa: A002 — as Spark calls it
    """The sink of a format. Raises for one that is not known."""
    kinds: dict[str, Callable[..., Sink]] = {
        "parquet": lambda path="": ParquetSink(path),
        "memory": MemorySink,
        "console": ConsoleSink,
    }
    if format not in kinds:
        raise BadInput(f"there is no sink {format!r}: use one of {', '.join(kinds)}, or foreach_batch(function)")
    return kinds[format](**options)


def read_staged(staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> pa.Table:
    tables = [pq.read_table(pa.BufferReader(blobs.get(name))).cast(schema) for name in sorted(staged)]
    return pa.concat_tables([schema.empty_table(), *tables])
