"""Window aggregates as users declare them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import NoReturn, get_args

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.windows import CountWindows, Firing, SessionWindows, TimeWindows, Windows, windows_text
from floodplain.operators.aggregates.aggregation import Aggregation
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.aggregates.combiner import AggregateCombiner
from floodplain.operators.changelog.changelog import WEIGHT, changelog_refused
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written
from floodplain.operators.kernel.process import KeyedBatchProcess, Process
from floodplain.operators.kernel.reserved_columns import check_keys
from floodplain.operators.kernel.traits import OperatorTraits, Partial
from floodplain.operators.windows.base import WindowProcess
from floodplain.operators.windows.count import CountWindowProcess
from floodplain.operators.windows.session import SessionProcess
from floodplain.operators.windows.sliding import SlidingProcess
from floodplain.operators.windows.time import TimeWindowProcess
from floodplain.operators.windows.triggers import END, START, Rules


@dataclass(frozen=True)
class WindowAggregate(KeyedBatchProcess, OperatorTraits):
    """Aggregates by key and window; ``bind`` binds it to a schema and chooses the process."""

    windows: Windows
    aggregates: Mapping[str, Aggregate]
    rules: Rules = field(default_factory=Rules)
    partial: Partial = "auto"
    of_windows: bool = False
    """Whether event times are ends of windows."""

    output_time = END

    @property
    def combines_when_bound(self) -> bool:  # type: ignore[override]
        return isinstance(self.windows, TimeWindows)

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.rules.firing == "retracting"

    @property
    def needs_end(self) -> bool:  # type: ignore[override]
        """The global window ends with the input."""
        return isinstance(self.windows, TimeWindows) and self.windows.is_global and self.rules.early is None

    def described(self, written: Written) -> OperatorSpec:
        kind = type(self.windows).__name__
        windows = ParameterSpec("windows", {"kind": kind, **asdict(self.windows)}, windows_text(self.windows))
        ends = ParameterSpec("of_windows", self.of_windows)
        rules = () if isinstance(self.windows, CountWindows) else self.rules.described()
        aggregates = tuple(aggregate.described(name, written) for name, aggregate in self.aggregates.items())
        return OperatorSpec("window aggregate", (windows, *rules, ends), aggregates)

    def goes_by_time(self) -> bool:
        return not (isinstance(self.windows, TimeWindows) and self.windows.is_global)

    def for_changes(self, name: str) -> NoReturn:
        raise changelog_refused(
            name,
            "a row may be retracted after its window has expired",
            "make the window a key and aggregate without windows, as in key_by('city', hour=\"date_trunc('hour', ts)\").agg(…)",
        )

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:
        if self.rules.firing not in get_args(Firing):
            raise BadInput(f"firing={self.rules.firing!r} is not known: use {', '.join(map(repr, get_args(Firing)))}")
        check_keys("window", keys, START, END, *([WEIGHT] if self.rules.firing == "retracting" else []))
        for name in self.aggregates:
            if name in (*keys, START, END, WEIGHT):
                raise BadInput(f"an aggregate cannot be called {name}: a key or a column of the window has this name")
            if name.startswith("_"):
                raise BadInput(f"an aggregate cannot be called {name}: in windows, names that start with _ are reserved")
        aggregation = Aggregation(self.aggregates).bind(rows, event_time)
        process = self._kind(event_time)(self.windows, aggregation, self.rules, rows, keys, event_time)
        if isinstance(self.windows, TimeWindows):
            process.inclusive = self.of_windows
        if self.partial and isinstance(self.windows, TimeWindows):
            timed = event_time is not None and not self.windows.is_global
            process.combiner = AggregateCombiner(
                aggregation,
                keys,
                event_time and rows.field(event_time),
                self.windows if timed else None,
                self.partial,
                self.of_windows,
            )
        return process

    def _kind(self, event_time: str | None) -> type[WindowProcess]:
        match self.windows:
            case CountWindows():
                if self.rules != Rules():
                    raise BadInput(
                        "count windows fire when they are full, and at no other time: for other triggers use global_window "
                        "with early=fp.every_rows(…)"
                    )
                return CountWindowProcess
            case TimeWindows(is_global=True):
                return TimeWindowProcess
            case _ if event_time is None:
                raise BadInput(
                    "windows of time need an event time: call watermark; downstream of a step whose output has no known "
                    "event-time column (a process function, an outer join), name one with on="
                )
            case SessionWindows():
                return SessionProcess
        return SlidingProcess if self.windows.per_pane > 1 and self.rules.plain else TimeWindowProcess
