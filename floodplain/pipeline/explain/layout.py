"""Layered layout of a dataflow graph: each box is below all boxes that it reads from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from floodplain.pipeline.explain.graph import Arrow, Graph

GAP_X, GAP_Y = 28.0, 58.0
_SWEEPS = 6


@dataclass(eq=False)
class Spot:
    """The position of a box, or of a bend where an arrow passes a layer. ``x`` is its centre, ``y`` its top."""

    width: float
    height: float
    layer: int
    x: float = 0.0
    y: float = 0.0
    above: list["Spot"] = field(default_factory=list)
    below: list["Spot"] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    boxes: tuple[Spot, ...]
    routes: tuple[tuple[Spot, ...], ...]
    """For each arrow, the spots that it connects."""
    width: float
    height: float


def laid_out(graph: Graph, sizes: Sequence[tuple[float, float]]) -> Layout:
    """``sizes``: width and height of each box."""
    layers = _layers(graph)
    boxes = [Spot(width, height, layers[number]) for number, (width, height) in enumerate(sizes)]
    rows: list[list[Spot]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for spot in boxes:
        rows[spot.layer].append(spot)
    routes = [_route(boxes[arrow.start], boxes[arrow.end], rows) for arrow in graph.arrows]
    _order(rows)
    _place(rows)
    left = min((spot.x - spot.width / 2 for row in rows for spot in row), default=0.0)
    for spot in (spot for row in rows for spot in row):
        spot.x -= left
    right = max((spot.x + spot.width / 2 for row in rows for spot in row), default=0.0)
    bottom = max((spot.y + spot.height for row in rows for spot in row), default=0.0)
    return Layout(tuple(boxes), tuple(routes), right, bottom)


def _layers(graph: Graph) -> Mapping[int, int]:
    layers: dict[int, int] = {}
    for number in range(len(graph.boxes)):
        layers[number] = max((layers[arrow.start] + 1 for arrow in graph.into(number)), default=0)
    _lower_inputs(graph.arrows, layers)
    return layers


def _lower_inputs(arrows: Sequence[Arrow], layers: dict[int, int]) -> None:
    """Moves each box without inputs to the layer right above its first reader."""
    fed = {arrow.end for arrow in arrows}
    for number in set(layers) - fed:
        layers[number] = min((layers[arrow.end] - 1 for arrow in arrows if arrow.start == number), default=0)


def _route(start: Spot, end: Spot, rows: list[list[Spot]]) -> tuple[Spot, ...]:
    route = [start]
    for layer in range(start.layer + 1, end.layer):
        bend = Spot(8.0, 0.0, layer)
        rows[layer].append(bend)
        route.append(bend)
    route.append(end)
    for upper, lower in pairwise(route):
        upper.below.append(lower)
        lower.above.append(upper)
    return tuple(route)


def _order(rows: list[list[Spot]]) -> None:
    """Reduces crossings: moves each spot to the mean position of its neighbours, in the layer above and below in turn."""
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        for row in rows if downward else reversed(rows):
            position = {id(spot): number for other in rows for number, spot in enumerate(other)}
            row.sort(key=lambda spot: _mean([position[id(near)] for near in _near(spot, downward)], position[id(spot)]))


def _place(rows: list[list[Spot]]) -> None:
    top = 0.0
    for row in rows:
        height = max((spot.height for spot in row), default=0.0)
        right = 0.0
        for spot in row:
            spot.x, spot.y = right + spot.width / 2, top + (height - spot.height) / 2
            right += spot.width + GAP_X
        top += height + GAP_Y
    for sweep in range(_SWEEPS):
        downward = sweep % 2 == 0
        for row in rows if downward else reversed(rows):
            _settle(row, [_mean([near.x for near in _near(spot, downward)], spot.x) for spot in row])


def _settle(row: list[Spot], wanted: list[float]) -> None:
    """Moves spots of a layer as near as possible to their ``wanted`` x, keeping their order and the gaps between them."""
    right = float("-inf")
    for spot, x in zip(row, wanted, strict=True):
        spot.x = max(x, right + spot.width / 2)
        right = spot.x + spot.width / 2 + GAP_X
    shift = _mean([x - spot.x for spot, x in zip(row, wanted, strict=True)], 0.0)
    for spot in row:
        spot.x += shift


def _near(spot: Spot, downward: bool) -> list[Spot]:
    return spot.above if downward else spot.below


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
