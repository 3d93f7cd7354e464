"""Nested types and their values, worked out the plain way: a field is known by a number of its own, whatever it is called."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

LEAVES = ("int8", "int16", "int32", "int64", "float", "double", "string", "large_string")
WIDER = {
    "int8": ("int16", "int32", "int64", "double"),
    "int16": ("int32", "int64"),
    "int32": ("int64", "double"),
    "float": ("double",),
    "string": ("large_string",),
}
KEY_WIDER = {"int8": ("int16", "int32"), "int16": ("int32",), "string": ("large_string",)}
NAMES = ("a", "b", "c", "zip")


@dataclass
class Kind:
    """``what`` is a leaf, ``struct``, ``list``, ``large_list``, ``pairs`` (a list of two) or ``map``, whose key is a leaf."""

    what: str
    inside: "list[Inner]" = field(default_factory=list)
    key: str = ""

    def arrow(self) -> pa.DataType:
        if self.what == "struct":
            return pa.struct([(inner.name, inner.kind.arrow()) for inner in self.inside])
        if not self.inside:
            return {"float": pa.float32(), "double": pa.float64()}.get(self.what) or getattr(pa, self.what)()
        one = self.inside[0].kind.arrow()
        if self.what == "map":
            return pa.map_(Kind(self.key).arrow(), one)
        return pa.large_list(one) if self.what == "large_list" else pa.list_(one, 2 if self.what == "pairs" else -1)

    def below(self) -> "Iterator[Kind]":
        yield self
        for inner in self.inside:
            yield from inner.kind.below()


@dataclass
class Inner:
    uid: int
    name: str
    kind: Kind


class Nested:
    """A column whose type changes. Values hold structs as ``{uid: value}``."""

    def __init__(self, draw: DrawFn, what: str = "", *, default: bool = False) -> None:
        self._uids = count(1)
        self.kind = self._kind(draw, 3, what or draw(st.sampled_from(("struct", "struct", "list", "map"))))
        self.default = self.value(draw, self.kind, some=True) if default else None

    def _kind(self, draw: DrawFn, depth: int, what: str = "") -> Kind:
        nested = ("struct", "struct", "list", "large_list", "pairs", "map") if depth else ()
        what = what or draw(st.sampled_from((*LEAVES[:7:2], *nested)))
        if what in LEAVES:
            return Kind(what)
        if what != "struct":
            key = draw(st.sampled_from(("int8", "string"))) if what == "map" else ""
            return Kind(what, [Inner(0, "", self._kind(draw, max(depth - 1, 0)))], key)
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        return Kind(what, [Inner(next(self._uids), name, self._kind(draw, depth - 1 if depth else 0)) for name in names])

    def value(self, draw: DrawFn, kind: Kind, *, some: bool = False) -> Any:
        if not some and draw(st.integers(0, 4)) == 0:
            return None
        match kind.what:
            case "struct":
                return {inner.uid: self.value(draw, inner.kind, some=some) for inner in kind.inside}
            case "list" | "large_list" | "pairs":
                size = 2 if kind.what == "pairs" else draw(st.integers(0, 3))
                return [self.value(draw, kind.inside[0].kind) for _ in range(size)]
            case "map":
                keys = draw(st.lists(st.integers(0, 3), max_size=2, unique=True))
                return [(str(key) if "string" in kind.key else key, self.value(draw, kind.inside[0].kind)) for key in keys]
            case _:
                number = draw(st.integers(-9, 9))
                return f"x{number}" if "string" in kind.what else float(number) if kind.what in ("float", "double") else number

    def shown(self, value: Any, kind: Kind | None = None, default: Any = None) -> Any:
        """As the newest type shows it. ``default``: what the column's default has in this place."""
        kind = kind or self.kind
        if value is None:
            return None
        if kind.what == "struct":
            default = default or {}
            return {
                inner.name: self.shown(value[inner.uid], inner.kind, default.get(inner.uid))
                if inner.uid in value
                else self.shown(default.get(inner.uid), inner.kind, default.get(inner.uid))
                for inner in kind.inside
            }
        if kind.what == "map":
            return [(key, self.shown(item, kind.inside[0].kind)) for key, item in value]
        if kind.inside:
            return [self.shown(item, kind.inside[0].kind) for item in value]
        return float(value) if kind.what in ("float", "double") else value

    def evolve(self, draw: DrawFn) -> None:
        """One change somewhere inside."""
        places = list(self.kind.below())
        kind = places[draw(st.integers(0, len(places) - 1))]
        if kind.what == "struct":
            getattr(self, draw(st.sampled_from(("_add", "_drop", "_reorder"))))(draw, kind)
        elif kind.what in WIDER:
            kind.what = draw(st.sampled_from(WIDER[kind.what]))
        elif kind.what == "list":
            kind.what = "large_list"
        elif kind.what == "map" and kind.key in KEY_WIDER:
            kind.key = draw(st.sampled_from(KEY_WIDER[kind.key]))

    def _add(self, draw: DrawFn, kind: Kind) -> None:
        free = [name for name in NAMES if name not in [inner.name for inner in kind.inside]]
        if not free:
            return
        inner = Inner(next(self._uids), draw(st.sampled_from(free)), self._kind(draw, 1))
        kind.inside.insert(draw(st.integers(0, len(kind.inside))), inner)
        place = self._default_at(self.kind, self.default, kind)
        if place is not None:
            place[inner.uid] = self.value(draw, inner.kind, some=True) if draw(st.booleans()) else None

    def _default_at(self, kind: Kind, default: Any, wanted: Kind) -> dict[int, Any] | None:
        """Where the column's default has the fields of a struct that stands in nothing but structs."""
        if kind.what != "struct" or default is None:
            return None
        if kind is wanted:
            return default
        found = (self._default_at(inner.kind, default.get(inner.uid), wanted) for inner in kind.inside)
        return next((place for place in found if place is not None), None)

    def _drop(self, draw: DrawFn, kind: Kind) -> None:
        if len(kind.inside) > 1:
            kind.inside.pop(draw(st.integers(0, len(kind.inside) - 1)))

    def _reorder(self, draw: DrawFn, kind: Kind) -> None:
        kind.inside = draw(st.permutations(kind.inside))
