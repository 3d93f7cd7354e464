"""The operators of a stream, as users write them: each becomes one stateful step."""

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
from floodplain.operators.kernel.event_order import InOrder, order_asked
from floodplain.operators.kernel.late_rows import lateness_asked
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import Partial, traits_of
from floodplain.operators.ranking.deduplicate import Dedup
from floodplain.operators.ranking.latest import Latest
from floodplain.operators.ranking.pivot import Pivot, Repeats
from floodplain.operators.ranking.top import Top
from floodplain.operators.windows.triggers import trigger_rules
from floodplain.pipeline.aggregate_arguments import all_named
from floodplain.pipeline.join import JoinAsked, On, Span, key_pairs
from floodplain.pipeline.pyspark_methods import check_side
from floodplain.pipeline.windowed import WindowedStream, running
from floodplain.plan.changelog_checks import taken
from floodplain.plan.nodes import Keyed, Node
from floodplain.state.descriptors import TimeKind
from floodplain.state.durations import to_ms

if TYPE_CHECKING:
    from floodplain.pipeline.stream import Stream


class Operations:
    """What ``Stream`` can do besides stateless steps, process functions and sinks.

    ``in_order``, as in ``process``: rows of a key are seen in the order of event time, each once the watermark has passed it, not
    as they come; ``fp.in_order(rows=…, time=…)`` bounds how many wait. They are not put together before (``partial``) then.

    ``lateness``, where an operator forgets by event time: rows up to so much behind the watermark are still taken. What it keeps
    stays for that much longer, and what it gives out when the watermark reaches a time comes that much later.
    """

    sources: Mapping[str, Any]
    node: Node
    broadcasts: Mapping[str, Any]
    keys: tuple[str, ...]
    changes: bool

    @property
    def time(self) -> str | None:
        """The column that has the event time at this point."""
        raise NotImplementedError

    def check_same_input(self, other: "Operations", what: str) -> None:
        """A pipeline has one input and one watermark: refuse a stream of another input, or with another watermark."""
        one, two = (cast("Stream", each) for each in (self, other))
        if (one.event_time, one.delay_ms, one.rule) != (two.event_time, two.delay_ms, two.rule):
            raise BadInput(f"{what}: the two streams have different watermarks: call watermark once, before they branch")
        if one.sources is not two.sources:
            raise BadInput(
                f"{what}: the two streams do not come of one: begin with fp.stream(a=…, b=…), take .source(…) of it for each, "
                "and call watermark once, before they branch"
            )

    def _keyed(
        self, process: Process, name: str, *, in_order: bool | InOrder, time: str | None = None, lateness_ms: int = 0
    ) -> "Stream":
        """A stateful step of ours. Unlike a user's own it knows which column has the time at this point, or is given it."""
        if not self.keys:
            raise BadInput(f"{name} needs keys: call key_by before it")
        order, time = order_asked(in_order), time or self.time
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
        """Windows of the rows of each key (of all rows, without ``key_by``), to be aggregated by ``agg``.

        A window gives a result when the watermark reaches its end; before that as ``early`` says, after that as ``late`` says,
        until ``lateness`` is over. ``firing``: a result holds all rows of the window (``accumulating``) or those since the last
        result (``discarding``), or comes with a row that takes the last result back (``retracting``: column ``weight``, 1 or
        -1). ``on`` names the column with the time, a timestamp or a long with milliseconds, if it is not the stream's.
        """
        check_windows(windows)
        rules = trigger_rules(to_ms(lateness, "lateness"), early, late, firing)
        if in_order and rules.lateness_ms:
            raise BadInput("window: where rows come in order none can come late: give in_order or lateness, not both")
        time = None if on is None else name_of(on, "window")
        return WindowedStream(cast("Stream", self), windows, rules, time, order_asked(in_order))

    def agg(
        self,
        *unnamed: Any,
        name: str = "aggregate",
        mode: Mode = "update",
        partial: Partial = "auto",
        in_order: bool | InOrder = False,
        **aggregates: Aggregate,
    ) -> "Stream":
        """Aggregates of all rows of each key so far (of all rows, without ``key_by``), by name; one row per key that has rows
        in the epoch. Those without a name are called after what they are: ``agg(fp.count(), fp.sum("v"))`` gives ``count`` and
        ``sum_v``; ``agg({"v": "sum"})`` and Spark's ``F.sum("v")`` are taken as well.

        ``mode="retract"``: only where something changed, with a row that takes the last one back (column ``weight``, 1 or -1).
        ``name`` names the state. ``partial``: Spark puts the rows of a key together before the exchange: always, never, or
        where the epoch before has shown that it pays.
        """
        return running(cast("Stream", self), name, mode, partial, order_asked(in_order), all_named(unnamed, aggregates))

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
        """Rows of this stream with those of another one of the same pipeline that have the same key.

        ``on``: a column of both, several, ``{"ad_id": "id"}``, or ``F.col("ad_id") == F.col("id")``, ours first. Which rows of
        a key: ``within=("-5 seconds", "20 seconds")``: ``other``'s time minus ours lies in there, bounds included;
        ``window=fp.tumbling(…)``: both are in one window; ``as_of=True``: the newest of ``other`` that is not later than ours;
        else all, for as long as they live (``ttl``, or for ever), and rows that come out without a partner are taken back when
        one comes (column ``weight``: 1, or -1). ``ttl_clock="event"``: a row lives from its event time on, or from the watermark
        if it came late.
        ``times``: the time column of each side, if it is not that of the watermark. ``suffixes``: what to add to the names of
        columns that both sides have.
        """
        check_side(other)
        sides, changes = times or (self.time, other.time), (self.changes, other.changes)
        asked = JoinAsked(on, how, within, window, as_of, ttl, ttl_clock, sides, suffixes, changes, lateness)
        self.check_same_input(other, "join")
        broadcasts = {**self.broadcasts, **other.broadcasts}
        step = asked.step(self.node, other.node, name)
        gives = step.traits.gives_changes
        return replace(cast("Stream", self), node=step, broadcasts=broadcasts, keys=(), changes=gives)

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
        """Rows with what the state of another pipeline has for their keys, as of one of its epochs.

        ``on``: our column → the key column of ``table``. ``at``: ``"now"`` (the newest epoch when ours begins), an epoch, or a
        tag. It is one for all rows of an epoch of ours, whatever their event times; what was valid at the time of each row is
        told by ``join(versions, on, as_of=True)``. Rows keep their event time, and none is too late. A table with several rows
        per key gives one row for each; ``how="left"`` keeps rows that have none. ``prefix`` comes before the names of its
        columns, ``options`` open its place. ``in_order``: what has waited is looked up in the epoch in which it comes out.
        """
        pairs = key_pairs(on)
        if how not in get_args(LookupHow):
            raise BadInput(f"lookup: how={how!r} is not known: use {' or '.join(get_args(LookupHow))}")
        asked = StateLookup(os.fspath(state), table, pairs, how, at, prefix, dict(options or {}), output_time=self.time)
        order = order_asked(in_order)
        process = taken(asked, name, self.changes, order)
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
        """One row per key: of the keys, of these columns, or of both. Columns and ``by`` as in ``key_by`` and ``last``.

        ``keep="first"``: the first that comes, and among those of an epoch the first by ``by`` (event time, if not given).
        ``within``: a row that is so much later in event time counts as new, and keys are forgotten after it.
        ``keep="last"`` is ``last``: what comes out changes, in the ``mode`` given.
        """
        also = cast("Stream", self).key_by(*columns) if columns else cast("Stream", self)
        keyed = replace(also, keys=(*self.keys, *also.keys)) if columns else also
        late_ms = lateness_asked("dedup", lateness, in_order=in_order, bounded_by="" if within is not None else "within")
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
        """The first ``count`` rows of each key by ``by``, as in ``"price desc, ts"``, with their ``rank`` from 1. ``by`` may be a
        ``Column``, too, as in ``F.col("price").desc()``, or several; what is to be computed is ``with_column`` before.

        ``mode``: ``update`` gives rows that are new at their rank; ``retract`` also those that were there before, told apart by
        ``weight``; ``append`` all rows of a key once the watermark has reached the time in the column ``until``, as the end of a
        window. ``ties``: rows alike in ``by`` have one rank, and all of them stay. ``rank``: what that column is called, if any.
        ``partial`` as in ``last``: the first ``count`` of each key are given on; with ``until``, all rows.
        """
        end = None if until is None else name_of(until, "top")
        process = Top(count, order_text(by, "top"), mode, ties, end, rank, partial, output_time=end or self.time)
        late_ms = lateness_asked("top", lateness, in_order=in_order, bounded_by="" if until is not None else "until")
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
        """The last row of each key by ``by`` (as in ``top``), by event time if not given, whenever it changes.

        ``mode``: ``update`` gives the new row, ``retract`` also the one before, told apart by ``weight``. ``ttl``: forget a key
        once the watermark is so far past its newest row; nothing is taken back then. ``partial``: the tasks that read rows give
        on only the last of each key among theirs: always, never, or where the epoch before has shown that it pays; with a
        ``ttl`` they give on all.
        """
        late_ms = lateness_asked("last", lateness, in_order=in_order, bounded_by="" if ttl is not None else "ttl")
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
        """The first row of each key by ``by``, as ``last``. An earlier one that comes later takes its place."""
        late_ms = lateness_asked("first", lateness, in_order=in_order, bounded_by="" if ttl is not None else "ttl")
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
        """One row per key with a column for each of ``values`` of ``column``, which has ``value`` of the rows with it.

        ``values`` may say what the columns are called: ``{"a": "first"}``. ``repeats``: of several rows the last by ``by`` (event
        time, if not given) counts, or their ``sum``, ``min`` or ``max``. ``mode`` as in ``last``.
        """
        named = values.items() if isinstance(values, Mapping) else ((each, str(each)) for each in values)
        kind, cell = name_of(column, "pivot"), name_of(value, "pivot")
        return self._keyed(Pivot(kind, tuple(named), cell, repeats, _order(by, "pivot"), mode), name, in_order=in_order)


def _order(by: Given | Sequence[Given] | None, call: str) -> str | None:
    return None if by is None else order_text(by, call)
