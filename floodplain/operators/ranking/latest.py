"""The latest (or earliest) row of each key, emitted when it changes."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.operators.changelog.changelog import (
    NO_COLUMNS,
    WEIGHT,
    Mode,
    changelog_of,
    changelog_refused,
    check_mode,
    with_columns,
    without_weight,
)
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, canonical, free
from floodplain.operators.kernel.process import KeyedBatchProcess, Process
from floodplain.operators.kernel.traits import OperatorTraits, Partial
from floodplain.operators.ranking.combiner import PAYS_FROM, RankingCombiner
from floodplain.operators.ranking.sort_order import (
    Order,
    backwards,
    check_order,
    leaders,
    nulls_last,
    parse_order,
    precedes,
    the_rest,
    within_keys,
)
from floodplain.operators.ranking.top_retractable import RetractableTop
from floodplain.state.descriptors import State, Value
from floodplain.state.durations import to_ms
from floodplain.state.row_structs import as_rows, as_struct, field_of, struct_type


@dataclass(frozen=True)
class Latest(KeyedBatchProcess, OperatorTraits):
    """The row of each key that is last (or first) by ``by``, which defaults to event time.

    Rows equal in it are ordered by their other columns, from left to right: the result depends neither on the arrival order
    nor on the epochs. A row whose ``by`` is null loses to all others.
    """

    by: str | None = None
    keep: Literal["first", "last"] = "last"
    mode: Mode = "update"
    ttl: str | timedelta | None = None
    partial: Partial = "auto"
    output_time: str | None = None
    of_changes: bool = False
    output: pa.Schema = NO_COLUMNS
    order: Order = ()
    keys: tuple[str, ...] = ()
    rows: pa.Schema = NO_COLUMNS

    def __post_init__(self) -> None:
        if self.keep not in ("first", "last"):
            raise BadInput(f"keep={self.keep!r} is not known: use 'first' or 'last'")
        check_mode(self.keep, self.mode, "update", "retract")

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.mode == "retract"

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        ttl_ms = None if self.ttl is None else to_ms(self.ttl, "ttl")
        return OperatorSpec(
            "latest",
            (
                ParameterSpec("keep", self.keep, f"{self.keep} row by {self.by or 'event time'}"),
                ParameterSpec("by", self.by and canonical(self.by)),
                ParameterSpec("ttl", ttl_ms, "" if self.ttl is None else f"forgotten after {self.ttl}"),
                ParameterSpec("mode", self.mode, f"mode {self.mode}", free),
                ParameterSpec("changes", self.of_changes),
            ),
        )

    def goes_by_time(self) -> bool:
        return self.by is None or self.ttl is not None

    def for_changes(self, name: str) -> "Latest":
        if self.mode != "retract":
            raise changelog_refused(
                name, "a key whose rows are all retracted has no row to replace the old one", "use mode='retract'"
            )
        if self.ttl is not None:
            raise changelog_refused(name, "a row that expired cannot be retracted", "omit ttl")
        return replace(self, of_changes=True)

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:
        if not self.of_changes:
            return self._bind(rows, keys, event_time)
        plain = without_weight(rows)
        bound = self._bind(plain, keys, event_time)
        return RetractableTop(self.keep, plain, keys, bound.order, (), bound.output, event_time)

    def _bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "Latest":
        by = self.by or (event_time and f"`{event_time}`")
        if not by:
            raise BadInput(f"{self.keep}: the rows have no event time: say by which column, as in {self.keep}(by='ts')")
        if self.ttl is not None and event_time is None:
            raise BadInput(
                f"{self.keep}: a key is forgotten by event time, and the rows have none: call watermark, or keep all keys"
            )
        requested = parse_order(by)
        check_order(requested, rows, self.keep)
        order = within_keys((backwards if self.keep == "last" else nulls_last)(requested), keys)
        order += the_rest(order, rows, keys, descending=self.keep == "last")
        output = with_columns(self.keep, rows, *([(WEIGHT, pa.int64())] if self.mode == "retract" else []))
        return replace(self, rows=rows, keys=keys, order=order, output=output, output_time=event_time)

    def states(self) -> dict[str, State]:
        kind = struct_type(self.rows, self.keys, self.keep)
        return {"row": Value(kind, nullable=False, ttl=self.ttl, ttl_clock="event" if self.ttl else "processing")}

    @property
    def combiner(self) -> RankingCombiner | None:  # type: ignore[override]
        """None where rows may be late: late rows must arrive unchanged."""
        if not self.partial or self.ttl is not None:
            return None
        return RankingCombiner(self.keys, self.order, self.output_time, self.partial, rows_per_group=PAYS_FROM)

    @property
    def drops_late(self) -> bool:  # type: ignore[override]
        """With a ttl: the row that a late one would be compared with may have expired."""
        return self.ttl is not None

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Without a ttl no row is late."""
        return pa.repeat(True, len(event_time)) if self.ttl is None else super().on_time(event_time, late_ms)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        best = leaders(batch.key_of_row, self.order, lambda name, at: batch.take(at, [name]).column(0))
        there = np.asarray(batch.exists("row"))[: len(best)]
        known, before = np.flatnonzero(there), batch.state("row")
        wins = precedes(
            lambda name, numbers: batch.take(best[numbers], [name]).column(0),
            lambda name, numbers: field_of(before, name).take(pa.array(numbers)),
            known,
            self.order,
        )
        there[known[wins]] = False
        if self.ttl is not None:
            batch.renew("row", np.flatnonzero(there))
        numbers = np.flatnonzero(~there)
        now = as_struct(batch.take(best[numbers]), before.type)
        batch.set("row", now, numbers)
        new = as_rows(batch, numbers, now, self.keys, self.rows)
        if self.mode == "update":
            return new
        replaced = known[wins]
        return changelog_of(as_rows(batch, replaced, before.take(pa.array(replaced)), self.keys, self.rows), new)
