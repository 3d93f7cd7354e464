"""Top-N per key."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS, ceil_ms
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
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, canonical, fixed, free, not_more
from floodplain.operators.kernel.process import KeyedBatchProcess, Process
from floodplain.operators.kernel.traits import OperatorTraits, Partial
from floodplain.operators.ranking.combiner import PAYS_FROM, RankingCombiner
from floodplain.operators.ranking.sort_order import Order, check_order, parse_order, ranked, ranks_of, the_rest, within_keys
from floodplain.operators.ranking.top_retractable import RetractableTop
from floodplain.state.descriptors import State, Value
from floodplain.state.row_structs import as_rows, as_struct, field_of, struct_type
from floodplain.store.rows.layout import at_rows, one_array
from floodplain.store.rows.row_classes import starts_of

RANK = "rank"


@dataclass(frozen=True)
class Top(KeyedBatchProcess, OperatorTraits):
    """The top ``count`` rows of each key by ``by``, with their ``rank`` from 1.

    Rows equal in ``by`` are ordered by their other columns, from left to right; with ``ties``, they have the same rank, and all
    rows of a rank up to ``count`` stay. The state has these rows and no others.

    Output: ``update``: rows that are new at their rank. ``retract``: also those they replace, with weight −1. ``append``: all
    rows of a key, once, when the watermark reaches the time in their column ``until``.
    """

    count: int
    by: str
    mode: Mode = "update"
    ties: bool = False
    until: str | None = None
    rank: str | None = RANK
    partial: Partial = "auto"
    output_time: str | None = None
    of_changes: bool = False
    output: pa.Schema = NO_COLUMNS
    order: Order = ()
    rest: Order = ()
    keys: tuple[str, ...] = ()
    rows: pa.Schema = NO_COLUMNS

    def __post_init__(self) -> None:
        check_mode("top", self.mode)
        if not isinstance(self.count, int) or self.count < 1:
            raise BadInput(f"top({self.count!r}) keeps no rows: use 1 or more")
        if (self.mode == "append") != (self.until is not None):
            raise BadInput(
                "top: rows can be appended once a time is over, which a column of them must say: mode='append' goes with "
                "until='window_end' or the like, and no other mode does"
            )
        if self.mode == "update" and (self.ties or self.rank is None):
            raise BadInput(
                "top: an update replaces the row of a key and rank, which must be there and differ: with ties=True or rank=None "
                "use mode='retract' or 'append'"
            )

    @property
    def gives_changes(self) -> bool:  # type: ignore[override]
        return self.mode == "retract"

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        ties, until = "ties stay" if self.ties else "", f"until {self.until}" if self.until is not None else ""
        return OperatorSpec(
            "top",
            (
                ParameterSpec("count", self.count, f"top {self.count} by {self.by}", fixed if self.of_changes else not_more),
                ParameterSpec("by", canonical(self.by)),
                ParameterSpec("ties", self.ties, ties),
                ParameterSpec("until", self.until, until),
                ParameterSpec("mode", self.mode, f"mode {self.mode}", free),
                ParameterSpec("rank", self.rank, rule=free),
                ParameterSpec("changes", self.of_changes),
            ),
        )

    def for_changes(self, name: str) -> "Top":
        if self.mode == "append":
            raise changelog_refused(name, "an appended row cannot be retracted", "use mode='retract' without until")
        if self.mode != "retract":
            raise changelog_refused(name, "a rank whose row is retracted may have no row to replace it", "use mode='retract'")
        return replace(self, of_changes=True)

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> Process:
        if not self.of_changes:
            return self._bind(rows, keys, event_time)
        plain = without_weight(rows)
        bound = self._bind(plain, keys, event_time)
        return RetractableTop(
            "top", plain, keys, bound.order, bound.rest, bound.output, event_time, self.count, self.ties, self.rank
        )

    def _bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "Top":
        order = parse_order(self.by)
        check_order(order, rows, "top")
        if not (within := within_keys(order, keys)):
            raise BadInput("top: all rows of a key are equal in its keys: order them by another column")
        if self.until is not None and (self.until not in rows.names or not _is_time(rows.field(self.until).type)):
            raise BadInput(
                f"top: until={self.until!r} is not a column of type timestamp or long; there are: {', '.join(rows.names)}"
            )
        more = [(self.rank, pa.int64())] if self.rank else []
        more += [(WEIGHT, pa.int64())] if self.mode == "retract" else []
        return replace(
            self,
            rows=rows,
            keys=keys,
            order=within,
            rest=the_rest(order, rows, keys),
            output=with_columns("top", rows, *more),
            output_time=self.until or event_time,
        )

    def states(self) -> dict[str, State]:
        rows: dict[str, State] = {"rows": Value(pa.list_(struct_type(self.rows, self.keys, "top")), nullable=False)}
        return rows if self.until is None else {**rows, "until_ms": Value("long", nullable=False)}

    @property
    def combiner(self) -> RankingCombiner | None:  # type: ignore[override]
        """None where rows may be late: late rows must arrive unchanged."""
        if not self.partial or self.until is not None:
            return None
        return RankingCombiner(
            self.keys,
            self.order,
            self.output_time,
            self.partial,
            PAYS_FROM * self.count,
            self.count,
            rest=self.rest,
            ties=self.ties,
        )

    @property
    def drops_late(self) -> bool:  # type: ignore[override]
        """A row of a group that was emitted is late."""
        return self.until is not None

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """Without ``until`` no row is late. Else the time of a row is the end of its group."""
        return pa.repeat(True, len(event_time)) if self.until is None else super().on_time(event_time, late_ms)

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        both = _StoredAndNew(batch, batch.state("rows"), np.arange(len(batch.starts) - 1))
        ranks = _Ranks.of(both, self)
        changed = np.zeros(len(batch.keys), bool)
        changed[ranks.owner[ranks.kept & ranks.new]] = True
        ranks = ranks.at(changed[ranks.owner])
        kept = ranks.at(ranks.kept)
        rows = both.rows(kept.place)
        batch.set("rows", _lists(rows, kept.owner), np.flatnonzero(changed))
        if self.until is not None:
            self._wait(batch)
            return None
        moved = kept.new if self.rank is None else kept.now != kept.before
        new = self._output(batch, kept.owner[moved], rows.filter(pa.array(moved)), kept.now[moved])
        if self.mode == "update":
            return new
        dropped = ranks.at(~ranks.new & (~ranks.kept | ((self.rank is not None) & (ranks.now != ranks.before))))
        return changelog_of(self._output(batch, dropped.owner, both.rows(dropped.place), dropped.before), new)

    def _output(self, batch: Batch, owner: np.ndarray, rows: pa.StructArray, rank: np.ndarray) -> pa.Table:
        output = as_rows(batch, owner, rows, self.keys, self.rows)
        return output.append_column(self.rank, pa.array(rank + 1, pa.int64())) if self.rank else output

    def _wait(self, batch: Batch) -> None:
        """Sets a timer at the latest ``until`` of each key."""
        assert self.until is not None
        latest = np.maximum.reduceat(ceil_ms(batch.column(self.until)), batch.starts[:-1])
        numbers = np.flatnonzero(latest > batch.state("until_ms").fill_null(NONE_MS).to_numpy()[: len(latest)])
        batch.set("until_ms", latest[numbers], numbers)
        batch.timer(latest[numbers], numbers)

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> pa.Table:  # noqa: ARG002
        """Emits the groups that are complete, unless a later row has extended them."""
        numbers, times = due["key_of"].to_numpy(), due["time"].to_numpy()
        until = batch.state("until_ms").fill_null(NONE_MS).to_numpy()
        ready = np.unique(numbers[until[numbers] == times])
        both = _StoredAndNew(batch, batch.state("rows"), ready, alone=True)
        ranks = _Ranks.of(both, self)
        batch.clear("rows", ready)
        batch.clear("until_ms", ready)
        first = ranks.at(ranks.kept)
        return self._output(batch, first.owner, both.rows(first.place), first.now)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """All rows of the keys, sorted by key and rank."""

    place: np.ndarray
    owner: np.ndarray
    new: np.ndarray
    now: np.ndarray
    """From 0, of all rows of the key."""
    before: np.ndarray
    """The rank before this epoch; −1 for a new row."""
    kept: np.ndarray

    @staticmethod
    def of(both: "_StoredAndNew", top: Top) -> "_Ranks":
        place, first = ranked(both.owner, top.order, top.rest, both.column)
        owner, new = both.owner[place], place >= both.stored
        begin, lead = ranks_of(owner, first, top.ties)
        older: np.ndarray = np.cumsum(~new) - ~new
        now = lead - begin
        return _Ranks(place, owner, new, now, np.where(new, -1, older[lead] - older[begin]), now < top.count)

    def at(self, which: np.ndarray) -> "_Ranks":
        columns = (self.place, self.owner, self.new, self.now, self.before, self.kept)
        return _Ranks(*(column[which] for column in columns))


class _StoredAndNew:
    """The rows of the state, then those of the epoch."""

    def __init__(self, batch: Batch, lists: pa.ListArray, numbers: np.ndarray, alone: bool = False) -> None:
        """Of the keys with these numbers. ``alone``: without the rows of the epoch."""
        lists = at_rows(lists, numbers)
        stored = np.repeat(numbers, lists.value_lengths().fill_null(0).to_numpy())
        self._batch, self._old = batch, lists.flatten()
        self.stored = len(stored)
        self.owner = stored if alone else np.concatenate([stored, batch.key_of_row])

    def column(self, name: str, places: np.ndarray) -> pa.Array:
        new = places >= self.stored
        fresh = one_array(self._batch.take(places[new] - self.stored, [name]).column(0))
        return _both_at(field_of(self._old, name), fresh, places, new)

    def rows(self, places: np.ndarray) -> pa.StructArray:
        """Whole rows."""
        new = places >= self.stored
        fresh = as_struct(self._batch.take(places[new] - self.stored), self._old.type)
        return _both_at(self._old, fresh, places, new)


def _both_at(old: pa.Array, fresh: pa.Array, places: np.ndarray, new: np.ndarray) -> pa.Array:
    """Old values by place, and where ``new`` says so, the fresh ones in their order."""
    if new.all():
        return fresh
    if not new.any():
        return old.take(pa.array(places))
    both = pa.concat_arrays([old, fresh])
    at = np.where(new, len(old) - 1 + np.cumsum(new), places)
    return both if len(at) == len(both) and (np.diff(at) == 1).all() else both.take(pa.array(at))


def _lists(rows: pa.StructArray, owner: np.ndarray) -> pa.ListArray:
    """A list for each owner. Requires: the rows of one owner are adjacent."""
    offsets = np.append(np.flatnonzero(starts_of(owner)), len(owner))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_int64(kind))
