"""Output printed to the console."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from floodplain.errors import BadInput
from floodplain.sinks.base import Sink
from floodplain.sinks.row_checks import value_of
from floodplain.sinks.staged import staged_batches
from floodplain.tiers.blobs import Blobs


class ConsoleSink(Sink):
    """Prints the first rows of each epoch. ``truncate`` is the width of a cell; 0 shows all of it."""

    def __init__(self, rows: int = 20, truncate: int = 40, console: Console | None = None) -> None:
        if rows < 0 or truncate < 0:
            raise BadInput("the sink console takes rows and truncate of 0 or more")
        self._rows = rows
        self._truncate = truncate
        self._console = console or Console()

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        table = Table()
        for field in schema:
            table.add_column(Text(field.name), justify="right" if _is_number(field.type) else "left", overflow="fold")
        count = 0
        for batch in staged_batches(staged, blobs, schema):
            for at in range(min(len(batch), max(self._rows - count, 0))):
                table.add_row(*(self._cell(value_of(column, at)) for column in batch.columns))
            count += batch.num_rows
        rest = count - self._rows
        self._console.print(f"epoch {epoch}: {count} rows" + (f", {rest} not shown" if rest > 0 else ""))
        if count:
            self._console.print(table)

    def _cell(self, value: Any) -> Text:
        if value is None:
            return Text("null", style="dim")
        text = str(value)
        return Text(f"{text[: self._truncate - 1]}…" if self._truncate and len(text) > self._truncate else text)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
