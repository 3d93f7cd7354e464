"""Windows as users ask for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.aggregate import Aggregate
from floodplain.operators.aggregation import Aggregation
from floodplain.operators.firing import END, START, WEIGHT, Rules
from floodplain.operators.process import KeyedBatchProcess, Process
from floodplain.operators.timewindows import TimeWindowProcess
from floodplain.operators.windows import Firing, TimeWindows, Windows


@dataclass(frozen=True)
class WindowAggregate(KeyedBatchProcess):
    """Aggregates by key and window; ``fitted`` says which process runs."""

    windows: Windows
    aggregates: Mapping[str, Aggregate]
    rules: Rules = field(default_factory=Rules)

    output_time = END

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:
        if self.rules.firing not in get_args(Firing):
            raise BadInput(f"firing={self.rules.firing!r} is not known: use {', '.join(map(repr, get_args(Firing)))}")
        for name in self.aggregates:
            if name in (*keys, START, END, WEIGHT) or name.startswith("_"):
                raise BadInput(f"an aggregate cannot be called {name}: a key or a column of the window has this name")
        aggregation = Aggregation(self.aggregates).fitted(rows, event_time)
        if event_time is None and not (isinstance(self.windows, TimeWindows) and self.windows.is_global):
            raise BadInput("windows of time need an event time: call watermark, or name a column with on=")
        return TimeWindowProcess(self.windows, aggregation, self.rules, rows, keys, event_time)
