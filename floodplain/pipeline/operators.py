"""The built-in operators of a stream: each call adds one stateful step."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from floodplain.errors import BadInput
from floodplain.eventtime.windows import EACH_EPOCH, Firing, Trigger, Windows, check_windows
from floodplain.expressions.columns import Given, name_of, order_text
from floodplain.operators.aggregates.base import Aggregate
from floodplain.operators.changelog.changelog import Mode
from floodplain.operators.joins.state_lookup import NOW, LookupHow, StateLookup
from floodplain.operators.joins.stream_join import How
from floodplain.operators.kernel.event_order import InOrder, parse_in_order
from floodplain.operators.kernel.late_rows import parse_lateness
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import Partial, traits_of
from floodplain.operators.ranking.deduplicate import Dedup
from floodplain.operators.ranking.latest import Latest
from floodplain.operators.ranking.pivot import Pivot, Repeats
from floodplain.operators.ranking.top import Top
from floodplain.operators.windows.triggers import trigger_rules
from floodplain.pipeline.aggregate_arguments import all_named
from floodplain.pipeline.join import JoinOptions, On, Span, key_pairs
from floodplain.pipeline.pyspark_methods import check_side
from floodplain.pipeline.windowed import WindowedStream, running
from floodplain.plan.changelog_checks import taken
from floodplain.plan.nodes import Keyed, Node
from floodplain.state.descriptors import TimeKind
from floodplain.state.durations import to_ms

if TYPE_CHECKING:
    from floodplain.pipeline.stream import Stream


class Operations:
    """The built-in stateful operators of ``Stream``: windows, aggregates, joins, lookups, deduplication, top-N, pivot.

    ``in_order``, as in ``process``: rows of a key are processed in event-time order, each once the watermark has passed it;
    ``fp.in_order(rows=…, time=…)`` bounds how many are buffered. Rows are then not pre-aggregated (``partial``).

    ``lateness``, for operators whose state expires by event time: rows up to this much behind the watermark are still processed.
    State expires later by as much, and so does output that is emitted when the watermark reaches a time.
    """

    sources: Mapping[str, Any]
    node: Node
    broadcasts: Mapping[str, Any]
    keys: tuple[str, ...]
    changes: bool

    @property
    def time(self) -> str | None:
        """The event-time column at this point."""
        raise NotImplementedError

    def check_same_input(self, other: "Operations", what: str) -> None:
        """Raises ``BadInput`` if the other stream has another input or another watermark: a pipeline has one of each."""
        one, two = (cast("Stream", each) for each in (self, other))
        if (one.event_time, one.delay_ms, one.rule) != (two.event_time, two.delay_ms, two.rule):
            raise BadInput(f"{what}: the two streams have different watermarks: call watermark once, before they branch")
        if one.sources is not two.sources:
            raise BadInput(
                f"{what}: the two streams have different inputs: begin with one fp.stream(a=…, b=…), branch with .source(…), and "
                "call watermark once, before they branch"
            )

    def _keyed(
        self, process: Process, name: str, *, in_order: bool | InOrder, time: str | None = None, lateness_ms: int = 0
    ) -> "Stream":
        """A built-in stateful step. Unlike a process function of a user, it knows its event-time column. ``time``: if it is
        another than that of the stream."""
        if not self.keys:
            raise BadInput(f"{name} needs keys: call key_by before it")
        order, time = parse_in_order(in_order), time or self.time
        process = taken(process, name, self.changes, order)
        step = Keyed(self.node, name, self.keys, process, event_time=time, in_order=order, lateness_ms=lateness_ms)
        return replace(cast("Stream", self), node=step, keys=(), changes=traits_of(process).gives_changes)

    def window(
        self,
        windows: Windows,
        *,
        lateness: str | timedelta = "0 seconds",
        early: Trigger | None = None,
        late: Trigger = EACH_EPOCH,
        firing: Firing = "accumulating",
        on: Given | None = None,
        in_order: bool | InOrder = False,
    ) -> WindowedStream:
        """Windows per key (over all rows, without ``key_by``); ``agg`` aggregates them.

        A window fires when the watermark reaches its end; before that by the trigger ``early``, after that by the trigger
        ``late``, until ``lateness`` is over. ``firing``: a result covers all rows of the window (``accumulating``), or only
        those since the last firing (``discarding``), or comes with a retraction of the last result (``retracting``: column
        ``weight``, 1 or -1). ``on``: the event-time column, a timestamp or a long with milliseconds, if it is not the stream's.
        """
        check_windows(windows)
        rules = trigger_rules(to_ms(lateness, "lateness"), early, late, firing)
        if in_order and rules.lateness_ms:
            raise BadInput("window: with in_order no row is late, so lateness has no effect: give in_order or lateness, not both")
        time = None if on is None else name_of(on, "window")
        return WindowedStream(cast("Stream", self), windows, rules, time, parse_in_order(in_order))

    def agg(
        self,
        *unnamed: Any,
        name: str = "aggregate",
        mode: Mode = "update",
        partial: Partial = "auto",
        in_order: bool | InOrder = False,
        **aggregates: Aggregate,
    ) -> "Stream":
        """Running aggregates per key (over all rows, without ``key_by``), by name. Emits one row per key that has rows in the
        epoch. Aggregates without a name get a default one: ``agg(fp.count(), fp.sum("v"))`` yields ``count`` and ``sum_v``;
        ``agg({"v": "sum"})`` and Spark's ``F.sum("v")`` work as well.

        ``mode="retract"``: a changelog. Emits only results that changed, each with a retraction of the last one (column
        ``weight``, 1 or -1). ``name`` names the state. ``partial``: whether rows are pre-aggregated by key before the shuffle:
        always, never, or if the last epoch has shown that it pays.
        """
        return running(cast("Stream", self), name, mode, partial, parse_in_order(in_order), all_named(unnamed, aggregates))

    def join(
        self,
        other: "Stream",
        on: On,
        how: How = "inner",
        *,
        within: tuple[Span, Span] | None = None,
        window: Windows | None = None,
        as_of: bool = False,
        ttl: Span | None = None,
        ttl_clock: TimeKind = "processing",
        times: tuple[str, str] | None = None,
        lateness: Span = "0 seconds",
        suffixes: tuple[str, str] | None = None,
        name: str = "join",
    ) -> "Stream":
        """Join with another stream of the same pipeline, on equal keys.

        ``on``: a column of both sides, several, ``{"ad_id": "id"}``, or ``F.col("ad_id") == F.col("id")``, the left side first.
        One of these bounds which rows of a key match. ``within=("-5 seconds", "20 seconds")``: the time of ``other`` minus that
        of this side is in the interval, bounds included. ``window=fp.tumbling(…)``: both are in the same window. ``as_of=True``:
        the newest row of ``other`` that is not later. None of them: all rows, until their ``ttl`` (or for ever); a row emitted
        without a partner is retracted once one comes (column ``weight``: 1, or -1). ``ttl_clock="event"``: a row expires ``ttl``
        after its event time, or, if it was late, after the watermark at its arrival.

        ``times``: the event-time column of each side, if it is not that of the watermark. ``suffixes``: appended to the names of
        columns that both sides have.
        """
        check_side(other)
        sides, changes = times or (self.time, other.time), (self.changes, other.changes)
        options = JoinOptions(on, how, within, window, as_of, ttl, ttl_clock, sides, suffixes, changes, lateness)
        self.check_same_input(other, "join")
        broadcasts = {**self.broadcasts, **other.broadcasts}
        step = options.step(self.node, other.node, name)
        emits_changes = step.traits.gives_changes
        return replace(cast("Stream", self), node=step, broadcasts=broadcasts, keys=(), changes=emits_changes)

    def lookup(
        self,
        state: str | os.PathLike[str],
        table: str,
        on: On,
        how: LookupHow = "left",
        *,
        at: str | int = NOW,
        prefix: str = "",
        options: Mapping[str, str] | None = None,
        in_order: bool | InOrder = False,
        name: str = "lookup",
    ) -> "Stream":
        """Enrich rows from a state table of another pipeline, read from a snapshot of one of its epochs.

        ``on``: column of this stream → key column of ``table``. ``at``: ``"now"`` (the newest epoch when an epoch of this
        pipeline begins), an epoch, or a tag. All rows of an epoch read the same snapshot, whatever their event times; to join
        with the version that was valid at the time of each row, use ``join(versions, on, as_of=True)``. Rows keep their event
        time, and none is dropped as late. A table with several rows per key yields one row for each; ``how="left"`` keeps rows
        without a match. ``prefix``: prepended to the column names of ``table``. ``options``: storage options of ``state``.
        ``in_order``: buffered rows are looked up in the epoch that releases them.
        """
        pairs = key_pairs(on)
        if how not in get_args(LookupHow):
            raise BadInput(f"lookup: how={how!r} is not known: use {' or '.join(get_args(LookupHow))}")
        lookup = StateLookup(os.fspath(state), table, pairs, how, at, prefix, dict(options or {}), output_time=self.time)
        order = parse_in_order(in_order)
        process = taken(lookup, name, self.changes, order)
        step = Keyed(self.node, name, tuple(pairs), process, event_time=self.time, in_order=order)
        return replace(cast("Stream", self), node=step, keys=())

    def dedup(
        self,
        *columns: Given,
        within: str | timedelta | None = None,
        keep: Literal["first", "last"] = "first",
        by: Given | Sequence[Given] | None = None,
        mode: Mode = "update",
        lateness: str | timedelta = "0 seconds",
        in_order: bool | InOrder = False,
        name: str = "dedup",
    ) -> "Stream":
        """Deduplicate: one row per key. The key is that of the stream, these columns, or both. ``columns`` as in ``key_by``,
        ``by`` as in ``last``.

        ``keep="first"``: the first row to arrive; within an epoch, the first by ``by`` (default: event time). ``within``: a row
        that is later by this much in event time is no duplicate, and the state of a key expires after it. ``keep="last"`` is
        ``last``: emits updates of the row, in the given ``mode``.
        """
        also = cast("Stream", self).key_by(*columns) if columns else cast("Stream", self)
        keyed = replace(also, keys=(*self.keys, *also.keys)) if columns else also
        late_ms = parse_lateness("dedup", lateness, in_order=in_order, bounded_by="" if within is not None else "within")
        order, within_ms = _order(by, "dedup"), None if within is None else to_ms(within, "within")
        first = Dedup(order, within_ms, output_time=self.time)
        process = first if keep == "first" else Latest(order, keep, mode, within, output_time=self.time)
        return keyed._keyed(process, name, in_order=in_order, lateness_ms=late_ms)

    def top(
        self,
        count: int,
        by: Given | Sequence[Given],
        *,
        mode: Mode = "update",
        ties: bool = False,
        until: Given | None = None,
        rank: str | None = "rank",
        partial: Partial = "auto",
        lateness: str | timedelta = "0 seconds",
        in_order: bool | InOrder = False,
        name: str = "top",
    ) -> "Stream":
        """Top N: the first ``count`` rows of each key ordered by ``by``, as in ``"price desc, ts"``, with their ``rank`` from 1.
        ``by`` may also be a ``Column``, as in ``F.col("price").desc()``, or several. Compute expressions before, by
        ``with_column``.

        ``mode``: ``update`` emits rows that are new at their rank; ``retract`` also retracts those that were there before (column
        ``weight``); ``append`` emits all rows of a key once the watermark reaches the time in the column ``until``, such as the
        end of a window. ``ties``: rows that are equal in ``by`` share a rank, and all of them are kept. ``rank``: the name of
        that column, or None. ``partial``: whether rows that cannot be in the top N are dropped before the shuffle, as in
        ``last``; with ``until``, none is.
        """
        end = None if until is None else name_of(until, "top")
        process = Top(count, order_text(by, "top"), mode, ties, end, rank, partial, output_time=end or self.time)
        late_ms = parse_lateness("top", lateness, in_order=in_order, bounded_by="" if until is not None else "until")
        return self._keyed(process, name, time=end, in_order=in_order, lateness_ms=late_ms)

    def last(
        self,
        by: Given | Sequence[Given] | None = None,
        *,
        mode: Mode = "update",
        ttl: str | timedelta | None = None,
        partial: Partial = "auto",
        lateness: str | timedelta = "0 seconds",
        in_order: bool | InOrder = False,
        name: str = "last",
    ) -> "Stream":
        """The last row of each key ordered by ``by`` (as in ``top``; default: event time), emitted whenever it changes.

        ``mode``: ``update`` emits the new row, ``retract`` also retracts the one before (column ``weight``). ``ttl``: a key
        expires once the watermark is this far past its newest row, without a retraction. ``partial``: whether each task keeps
        only the last of its rows of each key before the shuffle: always, never, or if the last epoch has shown that it pays;
        with a ``ttl``, never.
        """
        late_ms = parse_lateness("last", lateness, in_order=in_order, bounded_by="" if ttl is not None else "ttl")
        process = Latest(_order(by, "last"), "last", mode, ttl, partial, output_time=self.time)
        return self._keyed(process, name, in_order=in_order, lateness_ms=late_ms)

    def first(
        self,
        by: Given | Sequence[Given] | None = None,
        *,
        mode: Mode = "update",
        ttl: str | timedelta | None = None,
        partial: Partial = "auto",
        lateness: str | timedelta = "0 seconds",
        in_order: bool | InOrder = False,
        name: str = "first",
    ) -> "Stream":
        """The first row of each key ordered by ``by``, as ``last``. An earlier row that arrives later replaces it."""
        late_ms = parse_lateness("first", lateness, in_order=in_order, bounded_by="" if ttl is not None else "ttl")
        process = Latest(_order(by, "first"), "first", mode, ttl, partial, output_time=self.time)
        return self._keyed(process, name, in_order=in_order, lateness_ms=late_ms)

    def pivot(
        self,
        column: Given,
        values: Sequence[Any] | Mapping[Any, str],
        value: Given,
        *,
        repeats: Repeats = "last",
        by: Given | Sequence[Given] | None = None,
        mode: Mode = "update",
        in_order: bool | InOrder = False,
        name: str = "pivot",
    ) -> "Stream":
        """One row per key, with one output column for each of ``values`` of ``column``; it has the ``value`` of those rows.

        ``values`` may map to the names of the output columns: ``{"a": "first"}``. ``repeats``: for several rows, the last by
        ``by`` (default: event time), or their ``sum``, ``min`` or ``max``. ``mode`` as in ``last``.
        """
        named = values.items() if isinstance(values, Mapping) else ((each, str(each)) for each in values)
        kind, cell = name_of(column, "pivot"), name_of(value, "pivot")
        return self._keyed(Pivot(kind, tuple(named), cell, repeats, _order(by, "pivot"), mode), name, in_order=in_order)


def _order(by: Given | Sequence[Given] | None, call: str) -> str | None:
    return None if by is None else order_text(by, call)
