"""Joins as steps of a pipeline: a union of both sides, then one operator keyed by the join columns."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, get_args

from floodplain.errors import BadInput
from floodplain.expressions.columns import Given, name_of, written
from floodplain.expressions.identifiers import name_in, quoted
from floodplain.expressions.shown_columns import equal_columns
from floodplain.operators.changelog.changelog import changelog_refused
from floodplain.operators.joins.asof import AsOfHow, AsOfJoin
from floodplain.operators.joins.bounds import Bound, Interval, Lasting, SameWindow, Unbounded
from floodplain.operators.joins.columns import PACKED
from floodplain.operators.joins.stream_join import How, Join
from floodplain.operators.joins.stream_join_retractable import RetractableJoin
from floodplain.operators.kernel.late_rows import parse_lateness
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.reserved_columns import AT, RIGHT_SIDE
from floodplain.plan.nodes import Keyed, Node, Rest, Select, Union
from floodplain.state.descriptors import TimeKind
from floodplain.state.durations import to_ms

Span: TypeAlias = str | timedelta
On: TypeAlias = Given | Sequence[Given] | Mapping[Given, Given]


def key_pairs(on: On) -> dict[str, str]:
    """The columns to join on: left → right."""
    several = on if isinstance(on, Sequence) and not isinstance(on, str) else [on]
    pairs = list(on.items()) if isinstance(on, Mapping) else [pair for each in several for pair in _pairs_in(each)]
    if not pairs:
        raise BadInput(f"join: on={on!r} names no columns: pass one, several, or {{'left': 'right'}}")
    return {name_of(left, "join"): name_of(right, "join") for left, right in pairs}


def _pairs_in(on: Given) -> list[tuple[Given, Given]]:
    """A column that both sides have, or the pairs of an equality as a ``Column``, the left column first."""
    text = None if isinstance(on, str) else written(on)
    if text is None or name_in(text) is not None:
        return [(on, on)]
    pairs = equal_columns(text)
    if pairs is None:
        raise BadInput(
            f"join: {text} is no equality of two columns: pass on={{'left': 'right'}}; within=('0 seconds', '1 hour') bounds how "
            "far apart in time the rows may be"
        )
    return list(pairs)


@dataclass(frozen=True)
class JoinOptions:
    """The arguments of ``join``. ``step`` checks them."""

    on: On
    how: How
    within: tuple[Span, Span] | None
    window: Any
    as_of: bool
    ttl: Span | None
    ttl_clock: TimeKind
    times: tuple[str | None, str | None]
    suffixes: tuple[str, str] | None
    changes: tuple[bool, bool] = (False, False)
    """Of each side, whether it is a changelog."""
    lateness: Span = "0 seconds"

    def step(self, left: Node, right: Node, name: str) -> Keyed:
        known: tuple[str, ...] = get_args(AsOfHow if self.as_of else How)
        if self.how not in known:
            raise BadInput(f"join: how={self.how!r} is not known here: use {', '.join(known)}")
        process, times = self._process() if not any(self.changes) else (self._on_changelog(name), (None, None))
        ends = self.within is not None or self.window is not None or self.as_of
        lateness_ms = parse_lateness("join", self.lateness, bounded_by="" if ends else "within, window or as_of")
        sides = ("left",) if self.how in ("semi", "anti") and not any(self.changes) else ("left", "right")
        return joined((left, right), key_pairs(self.on), times, process, name, sides, lateness_ms)

    def _on_changelog(self, name: str) -> Process:
        for bound in self._bounds():
            raise changelog_refused(
                name,
                "a retraction that comes after its partners have expired could not retract the rows joined with them",
                f"omit {bound}",
            )
        return RetractableJoin(self.how, self.suffixes, self.changes)

    def _bounds(self) -> list[str]:
        """The names of the arguments that bound how long rows wait for partners, as far as they are set."""
        bounds = {"within": self.within, "window": self.window, "ttl": self.ttl, "as_of": self.as_of or None}
        return [name for name, bound in bounds.items() if bound is not None]

    def _process(self) -> tuple[Process, tuple[str | None, str | None]]:
        bounds = self._bounds()
        if len(bounds) > 1:
            raise BadInput(f"join: {' and '.join(bounds)} exclude each other: each bounds how long rows wait for partners")
        if self.as_of:
            both = self._times()
            return AsOfJoin("left" if self.how == "left" else "inner", both, self.suffixes), both
        bound = self._bound()
        times = self._times() if bound.dated else (None, None)
        return Join(self.how, bound, times, self.suffixes), times

    def _bound(self) -> Bound:
        if self.ttl is None and self.ttl_clock != "processing":
            raise BadInput(f"join: ttl_clock={self.ttl_clock!r} says by which time a ttl is counted: give one, as ttl='1 day'")
        if self.within is not None:
            return Interval(*self._spans())
        if self.window is not None:
            return SameWindow(self.window)
        if self.ttl is None or self.ttl_clock == "processing":
            return Unbounded(self.ttl)
        if self.ttl_clock != "event":
            raise BadInput(f"join: there is no time {self.ttl_clock!r}: use 'processing' or 'event'")
        return Lasting(to_ms(self.ttl, "ttl"))

    def _spans(self) -> tuple[int, int]:
        if not isinstance(self.within, tuple | list) or len(self.within) != 2:
            raise BadInput(
                f"join: within={self.within!r} is not a pair: pass both bounds of right.time - left.time, as in "
                "within=('-5 seconds', '5 seconds')"
            )
        low, high = map(to_span_ms, self.within)
        return low, high

    def _times(self) -> tuple[str, str]:
        left, right = self.times
        if left is None or right is None:
            side = "left" if left is None else "right"
            raise BadInput(f"join: the {side} side has no event time: call watermark, or name the columns: times=(…, …)")
        return left, right


def to_span_ms(span: Span) -> int:
    """A duration in milliseconds that may be negative: ``"-5 seconds"``."""
    if isinstance(span, timedelta):
        return to_ms(abs(span), "within") * (-1 if span < timedelta(0) else 1)
    text = span.strip() if isinstance(span, str) else span
    if isinstance(text, str) and text.startswith("-"):
        return -to_ms(text[1:], "within")
    return to_ms(text, "within")


def joined(
    sides: tuple[Node, Node],
    on: dict[str, str],
    times: tuple[str | None, str | None],
    process: Process,
    name: str,
    packed: Collection[str] = tuple(PACKED),
    lateness_ms: int = 0,
) -> Keyed:
    """The operator over the union of both sides. ``times``: the event-time column of each side, if the join is bounded by time.
    ``packed``: sides whose other columns are needed, too; each as one struct."""
    members = []
    for side, node, keys, time in zip(PACKED, sides, (list(on), list(on.values())), times, strict=True):
        columns: list[tuple[str, Any]] = [(RIGHT_SIDE, "true" if side == "right" else "false")]
        columns += [(key, quoted(own)) for key, own in zip(on, keys, strict=True)]
        columns += [] if time is None else [(AT, quoted(time))]
        if side in packed:
            columns.append((PACKED[side], Rest((*keys, *([] if time is None else [time])))))
        members.append(Select(node, tuple(columns)))
    time = AT if times != (None, None) else None
    return Keyed(Union(tuple(members)), name, tuple(on), process, event_time=time, lateness_ms=lateness_ms)
