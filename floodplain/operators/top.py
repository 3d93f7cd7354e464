"""The first N rows of each key in an order."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS
from floodplain.operators.changes import NO_COLUMNS, WEIGHT, Mode, check_mode, retracted, with_columns
from floodplain.operators.order import Order, check_order, parse_order, ranked, the_rest
from floodplain.operators.process import KeyedBatchProcess
from floodplain.operators.structs import as_rows, as_struct, field_of, struct_type
from floodplain.state.descriptors import State, Value
from floodplain.store.identity import starts_of
from floodplain.store.layout import one_array

RANK = "rank"


@dataclass(frozen=True)
class Top(KeyedBatchProcess):
    """The first ``count`` rows of each key by ``by``, with their ``rank`` from 1.

    Rows alike in ``by`` are told apart by their other columns, in the order these stand in; with ``ties``, those alike have the
    same rank and all that have one up to ``count`` stay. The state has these rows and no others.

    What comes out: ``update``: rows that are new at their rank. ``retract``: also those that were there before, with
    weight −1. ``append``: all rows of a key, once, when the watermark reaches the time in their column ``until``.
    """

    count: int
    by: str
    mode: Mode = "update"
    ties: bool = False
    until: str | None = None
    rank: str | None = RANK
    output_time: str | None = None
    output: pa.Schema = NO_COLUMNS
    order: Order = ()
    rest: Order = ()
    keys: tuple[str, ...] = ()
    rows: pa.Schema = NO_COLUMNS

    def __post_init__(self) -> None:
        check_mode("top", self.mode)
        if not isinstance(self.count, int) or self.count < 1:
            raise BadInput(f"top({self.count!r}) keeps no rows: give a number of 1 or more")
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

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "Top":
        order = parse_order(self.by)
        check_order(order, rows, "top")
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
            order=order,
            rest=the_rest(order, rows, keys),
            output=with_columns("top", rows, *more),
            output_time=self.until or event_time,
        )

    def states(self) -> dict[str, State]:
        rows: dict[str, State] = {"rows": Value(pa.list_(struct_type(self.rows, self.keys, "top")), nullable=False)}
        return rows if self.until is None else {**rows, "until_ms": Value("long", nullable=False)}

    @property
    def drops_late(self) -> bool:  # type: ignore[override]
        """A row whose group is complete is late, whoever made it."""
        return self.until is not None

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """What has no end has no lateness. Else the time of a row is the end of its group."""
        return pa.repeat(True, len(event_time)) if self.until is None else super().on_time(event_time, late_ms)

    def process(self, batch: Any, ctx: Any) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        both = _Both(batch, batch.state("rows").slice(0, len(batch.starts) - 1))
        place, first = ranked(both.owner, self.order, self.rest, both.column)
        owner = both.owner[place]
        begin = np.flatnonzero(starts_of(owner))
        number = np.arange(len(owner)) - np.repeat(begin, np.diff(np.append(begin, len(owner))))
        rank = number[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))] if self.ties else number
        kept = rank < self.count
        changed = np.zeros(len(batch.keys), bool)
        changed[owner[kept & (place >= both.held)]] = True
        kept &= changed[owner]
        place, owner, rank = place[kept], owner[kept], rank[kept]
        rows = both.rows(place)
        numbers = np.flatnonzero(changed)
        batch.set("rows", _lists(rows, owner, numbers), numbers)
        if self.until is not None:
            self._wait(batch)
            return None
        return self._changes(batch, both, changed, place, owner, rank, rows)

    def _changes(
        self, batch: Any, both: "_Both", changed: np.ndarray, place: np.ndarray, owner: np.ndarray, rank: np.ndarray, rows: Any
    ) -> pa.Table:
        """What is new at its rank, and what was there before. Without a rank, what is new at all."""
        old_rank = self._old_ranks(both)
        now = np.full(both.held, -1)
        stayed = place < both.held
        now[place[stayed]] = rank[stayed]
        was = np.full(len(place), -1)
        was[stayed] = old_rank[place[stayed]]
        moved = (was < 0) if self.rank is None else was != rank
        at = np.flatnonzero(moved)
        new = self._output(batch, owner[at], rows.take(pa.array(at)), rank[at])
        if self.mode == "update":
            return new
        gone = np.flatnonzero(changed[both.owner[: both.held]] & ((now < 0) if self.rank is None else now != old_rank))
        return retracted(self._output(batch, both.owner[gone], both.old.take(pa.array(gone)), old_rank[gone]), new)

    def _old_ranks(self, both: "_Both") -> np.ndarray:
        owner = both.owner[: both.held]
        if not self.ties:
            return np.arange(both.held) - np.searchsorted(owner, owner)
        place, first = ranked(owner, self.order, (), both.column)
        number = np.arange(len(owner)) - np.searchsorted(owner, owner)
        rank = np.empty(len(owner), np.int64)
        rank[place] = number[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]
        return rank

    def _output(self, batch: Any, owner: np.ndarray, rows: pa.StructArray, rank: np.ndarray) -> pa.Table:
        found = as_rows(batch, owner, rows, self.keys, self.rows)
        return found.append_column(self.rank, pa.array(rank + 1, pa.int64())) if self.rank else found

    def _wait(self, batch: Any) -> None:
        """Rows that do not say the same agree on the latest."""
        latest = np.maximum.reduceat(ceil_ms(batch.column(self.until)), batch.starts[:-1])
        numbers = np.flatnonzero(latest > batch.state("until_ms").fill_null(NONE_MS).to_numpy()[: len(latest)])
        batch.set("until_ms", latest[numbers], numbers)
        batch.timer(latest[numbers], numbers)

    def on_timers(self, batch: Any, due: pa.Table, ctx: Any) -> pa.Table:  # noqa: ARG002
        """The groups that are complete, unless a later row has put that off."""
        numbers, times = due["key_of"].to_numpy(), due["time"].to_numpy()
        until = batch.state("until_ms").fill_null(NONE_MS).to_numpy()
        ready = np.unique(numbers[until[numbers] == times])
        found = _Both(batch, batch.state("rows").take(pa.array(ready)), ready)
        out = self._output(batch, found.owner, found.old, self._old_ranks(found))
        batch.clear("rows", ready)
        batch.clear("until_ms", ready)
        return out


class _Both:
    """The rows that the state has, then those of the epoch, as one."""

    def __init__(self, batch: Any, lists: pa.ListArray, numbers: np.ndarray | None = None) -> None:
        self._batch = batch
        self.old: pa.StructArray = lists.flatten()
        lengths = lists.value_lengths().fill_null(0).to_numpy()
        held = np.repeat(np.arange(len(lists)) if numbers is None else numbers, lengths)
        self.held = len(held)
        self.owner = held if numbers is not None else np.concatenate([held, batch.key_of_row])

    def column(self, name: str, places: np.ndarray) -> pa.Array:
        new = places >= self.held
        fresh = one_array(self._batch.take(places[new] - self.held, [name]).column(0))
        return _both_at(field_of(self.old, name), fresh, places, new)

    def rows(self, places: np.ndarray) -> pa.StructArray:
        """Whole rows."""
        new = places >= self.held
        fresh = as_struct(self._batch.take(places[new] - self.held), self.old.type)
        return _both_at(self.old, fresh, places, new)


def _both_at(old: pa.Array, fresh: pa.Array, places: np.ndarray, new: np.ndarray) -> pa.Array:
    """Old values by place, and where ``new`` says so, the fresh ones in their order."""
    if new.all():
        return fresh
    at = np.where(new, len(old) - 1 + np.cumsum(new), places)
    both = pa.concat_arrays([old, fresh]) if len(fresh) else old
    return both if len(at) == len(both) and (np.diff(at) == 1).all() else both.take(pa.array(at))


def _lists(rows: pa.StructArray, owner: np.ndarray, numbers: np.ndarray) -> pa.ListArray:
    """A list for each of these numbers. Requires: rows are by owner, and each number has some."""
    offsets = np.append(np.searchsorted(owner, numbers), len(owner))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_int64(kind))


def ceil_ms(times: pa.Array) -> np.ndarray:
    """Times in milliseconds, rounded up; null is before all."""
    if not pa.types.is_timestamp(times.type):
        return times.cast(pa.int64()).fill_null(NONE_MS).to_numpy(zero_copy_only=False)
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    return np.maximum(-(-micros.fill_null(NONE_MS).to_numpy() // 1000), NONE_MS)
