"""Where output goes once its epoch is committed: the sinks by name, and those that live in this process."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from floodplain.errors import BadInput, UserError
from floodplain.spark.fitness import value_of
from floodplain.spark.sink import Sink, check_staged, read_staged, staged_batches, staged_path
from floodplain.spark.sink_delta import DeltaSink
from floodplain.spark.sink_files import ParquetSink
from floodplain.spark.sink_kafka import KafkaSink
from floodplain.tiers.blobs import Blobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ConsoleSink", "ForeachBatchSink", "MemorySink", "Sink", "open_sink", "read_staged"]


def open_sink(format: str, options: Mapping[str, Any]) -> Sink:  # noqa: A002 — as Spark calls it
    """The sink that ``write(format, **options)`` asks for. Raises ``BadInput`` for a format or option that does not exist."""
    kinds: dict[str, Callable[..., Sink]] = {
        "parquet": ParquetSink,
        "delta": DeltaSink,
        "kafka": KafkaSink,
        "memory": MemorySink,
        "console": ConsoleSink,
    }
    if format not in kinds:
        raise BadInput(f"there is no sink {format!r}: use one of {', '.join(kinds)}, or foreach_batch(function)")
    known = inspect.signature(kinds[format]).parameters
    options = {name if name in known else _snake(name): value for name, value in options.items()}
    unknown = [name for name in options if name not in known]
    missing = [name for name, option in known.items() if option.default is option.empty and name not in options]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise BadInput(f"the sink {format} has no option {', '.join(unknown)}: {takes}")
    if missing:
        raise BadInput(f"the sink {format} needs {', '.join(missing)}: write({format!r}, {', '.join(f'{m}=…' for m in missing)})")
    return kinds[format](**options)


def _snake(name: str) -> str:
    """The name of an option as Spark spells it, in ours: ``mergeSchema``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class MemorySink(Sink):
    """Keeps the output in the driver, for notebooks and tests. Gone with the process."""

    def __init__(self) -> None:
        self._epochs: dict[int, pa.Table] = {}
        self._schema = pa.schema([])

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:  # noqa: ARG002
        self._schema = schema

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        self._schema = schema
        self._epochs[epoch] = read_staged(staged, blobs, schema)

    def table(self) -> pa.Table:
        """All output so far, by epoch."""
        return pa.concat_tables([self._schema.empty_table(), *(self._epochs[epoch] for epoch in sorted(self._epochs))])


class ConsoleSink(Sink):
    """Prints the first rows of each epoch. ``truncate`` is the width of a cell; 0 shows all of it."""

    def __init__(self, rows: int = 20, truncate: int = 40, console: Console | None = None) -> None:
        if rows < 0 or truncate < 0:
            raise BadInput("the sink console takes rows and truncate of 0 or more")
        self._rows = rows
        self._truncate = truncate
        self._console = console or Console()

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        shown = Table()
        for field in schema:
            shown.add_column(Text(field.name), justify="right" if _is_number(field.type) else "left", overflow="fold")
        count = 0
        for batch in staged_batches(staged, blobs, schema):
            for at in range(min(len(batch), max(self._rows - count, 0))):
                shown.add_row(*(self._cell(value_of(column, at)) for column in batch.columns))
            count += batch.num_rows
        rest = count - self._rows
        self._console.print(f"epoch {epoch}: {count} rows" + (f", {rest} not shown" if rest > 0 else ""))
        if count:
            self._console.print(shown)

    def _cell(self, value: Any) -> Text:
        if value is None:
            return Text("null", style="dim")
        text = str(value)
        return Text(f"{text[: self._truncate - 1]}…" if self._truncate and len(text) > self._truncate else text)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


class ForeachBatchSink(Sink):
    """Calls a function with a DataFrame and the epoch. At least once: keep the epoch with what you write to tell a repeat.

    Where the state is in a directory the executors read the staged files: the driver has checked them just before, and executors
    check each page. Else the rows go through the driver. Either way the DataFrame is good until the function returns.
    """

    def __init__(self, function: Callable[["DataFrame", int], None], spark: "SparkSession") -> None:
        self._function = function
        self._spark = spark

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        rows = self._rows(staged, blobs, schema)
        try:
            self._function(rows, epoch)
        except Exception as error:
            raise UserError.in_function("foreach_batch", self._function, error, epoch) from error

    def _rows(self, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> "DataFrame":
        from pyspark.sql.pandas.types import from_arrow_schema  # here only, so that sinks are there without Spark

        wanted = from_arrow_schema(schema)
        places = {name: staged_path(name, blobs) for name in sorted(staged)}
        local = {name: place for name, place in places.items() if place is not None}
        if staged and len(local) == len(places):
            for name, path in local.items():
                check_staged(name, blobs, path)
            reader = self._spark.read.schema(wanted).option("parquet.page.verify-checksum.enabled", "true")
            return reader.parquet(*(f"file://{path}" for path in local.values()))
        rows = read_staged(staged, blobs, schema)
        return self._spark.createDataFrame(rows, wanted)
