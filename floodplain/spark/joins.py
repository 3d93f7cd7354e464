"""Joins as steps of a pipeline: both sides as one table, then one operator keyed by what they are joined on."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, get_args

from floodplain.errors import BadInput
from floodplain.operators.join import How, Join
from floodplain.operators.join_bounds import Bound, Interval, Unbounded
from floodplain.operators.join_columns import AT, PACKED, RIGHT_SIDE
from floodplain.operators.process import Process
from floodplain.spark.names import quoted
from floodplain.spark.plan import Keyed, Node, Rest, Select, Union
from floodplain.state.descriptors import TimeKind
from floodplain.state.durations import to_ms

Span: TypeAlias = str | timedelta
On: TypeAlias = str | Sequence[str] | Mapping[str, str]


def key_pairs(on: On) -> dict[str, str]:
    """The columns to join on: left → right."""
    pairs = {on: on} if isinstance(on, str) else dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    if not pairs or not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise BadInput(f"join: on={on!r} names no columns: give one, several, or {{'left': 'right'}}")
    return pairs


@dataclass(frozen=True)
class JoinAsked:
    """What ``join`` was given, checked."""

    on: On
    how: How
    within: tuple[Span, Span] | None
    ttl: str | None
    ttl_clock: TimeKind
    times: tuple[str | None, str | None]
    suffixes: tuple[str, str] | None

    def step(self, left: Node, right: Node, name: str) -> Keyed:
        if self.how not in get_args(How):
            raise BadInput(f"join: how={self.how!r} is not known: use {', '.join(get_args(How))}")
        bound = self._bound()
        times = self._times() if bound.ends else (None, None)
        sides = ("left",) if self.how in ("semi", "anti") else ("left", "right")
        return joined((left, right), key_pairs(self.on), times, Join(self.how, bound, times, self.suffixes), name, sides)

    def _bound(self) -> Bound:
        if self.within is None:
            return Unbounded(self.ttl, self.ttl_clock)
        if self.ttl is not None:
            raise BadInput(
                "join: ttl is for joins without bounds: rows of a join within bounds are kept as long as they are needed"
            )
        low, high = (to_span_ms(bound) for bound in self.within)
        return Interval(low, high)

    def _times(self) -> tuple[str, str]:
        left, right = self.times
        if left is None or right is None:
            side = "left" if left is None else "right"
            raise BadInput(f"join: the {side} side has no event time: call watermark, or name the columns: times=(…, …)")
        return left, right


def to_span_ms(span: Span) -> int:
    """A length of time that may be negative: ``"-5 seconds"``."""
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
) -> Keyed:
    """``times``: the time column of each side, if time matters. ``packed``: sides whose other columns are needed, too."""
    members = []
    for side, node, keys, time in zip(PACKED, sides, (list(on), list(on.values())), times, strict=True):
        columns: list[tuple[str, Any]] = [(RIGHT_SIDE, "true" if side == "right" else "false")]
        columns += [(key, quoted(own)) for key, own in zip(on, keys, strict=True)]
        columns += [] if time is None else [(AT, quoted(time))]
        if side in packed:
            columns.append((PACKED[side], Rest((*keys, *([] if time is None else [time])))))
        members.append(Select(node, tuple(columns)))
    return Keyed(Union(tuple(members)), name, tuple(on), process, event_time=AT if times != (None, None) else None)
