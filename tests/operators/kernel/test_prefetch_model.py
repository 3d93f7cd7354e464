"""Lists, maps and sets under every way of prefetching, against plain dicts and lists."""

from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.operators.kernel.process import KeyedProcess
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import List, Map, Set
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, op string, page string, n long"
SMALL = StoreSettings(key_groups=16, prefetch_bytes=1, chunk_bytes=1, window_bytes=1000)
"""Nothing fits the budget, each chunk holds a few rows, each piece a few chunks."""
PLACES = count()
WAYS = {
    "all": ("all", None),
    "all, over budget": ("all", SMALL),
    "lazy": ("lazy", None),
    "lazy, in pieces": ("lazy", SMALL),
    "by the row": ("page", None),
}


def script(prefetch: str) -> KeyedProcess:
    """Does what the rows say, to a map, a set and a list, and tells what it saw."""

    class Script(KeyedProcess):
        pages = Map("string", "long", prefetch=prefetch)
        seen = Set("string", prefetch=prefetch)
        trail = List("string", prefetch=prefetch if prefetch in ("all", "lazy") else "lazy")
        output = "user string, saw string"

        def process(self, key, rows, ctx):
            for row in rows:
                yield key.user, repr(DO[row.op](self, row))

    return Script()


def _drain(on: Any, row: Any) -> None:
    for page in on.pages:
        on.pages.remove(page)


def _all(on: Any, row: Any) -> Any:
    held = sorted(on.pages.items()), sorted(on.pages.keys()), sorted(on.pages.values()), len(on.pages), len(on.seen)
    return *held, on.trail.get(), list(on.trail), len(on.trail)


DO = {
    "put": lambda on, row: [on.pages.put(row.page, row.n), on.seen.add(row.page), on.trail.append(row.page)],
    "remove": lambda on, row: [on.pages.remove(row.page), on.seen.remove(row.page)],
    "merge": lambda on, row: on.pages.merge(row.page, row.n),
    "clear": lambda on, row: [on.pages.clear(), on.seen.clear(), on.trail.clear()],
    "replace": lambda on, row: on.trail.set([row.page, "!"]),
    "get": lambda on, row: (on.pages.get(row.page, "none"), on.pages.contains(row.page), row.page in on.seen),
    "walk": lambda on, row: (sorted((page, on.pages.get(page)) for page in on.pages), sorted(on.seen)),
    "exists": lambda on, row: (on.pages.exists(), on.seen.exists(), on.trail.exists()),
    "drain": _drain,
    "all": _all,
}


class Model:
    """One key's state as plain Python values, with the methods that the script uses."""

    class Pages(dict):
        put = dict.__setitem__
        contains = dict.__contains__

        def merge(self, page, n):
            self[page] = n + (self.get(page) or 0)

        def remove(self, page):
            self.pop(page, None)

        def exists(self):
            return bool(self)

        def __iter__(self):
            return iter(list(super().keys()))

    class Seen(set):
        remove = set.discard

        def exists(self):
            return bool(self)

    class Trail(list):
        def get(self):
            return list(self)

        def set(self, values):
            self[:] = values

        def exists(self):
            return bool(self)

    def __init__(self) -> None:
        self.pages, self.seen, self.trail = self.Pages(), self.Seen(), self.Trail()


STEPS = [*DO, "put", "put", "merge", "get"]
step = st.tuples(st.sampled_from("uv"), st.sampled_from(STEPS), st.sampled_from("abcdefgh"), st.integers(1, 9))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(step, max_size=8), min_size=1, max_size=5), st.booleans())
def test_every_way_sees_what_a_plain_dict_holds(epochs, compacted):
    kits = {way: _kit(how, size) for way, (how, size) in WAYS.items()}
    models = {"u": Model(), "v": Model()}
    for rows in epochs:
        named = [dict(zip(("user", "op", "page", "n"), row, strict=True)) for row in rows]
        wanted = {
            user: [repr(DO[row["op"]](model, _Row(row))) for row in named if row["user"] == user]
            for user, model in models.items()
        }
        for way, kit in kits.items():
            out = kit.epoch(named)
            found = {user: [row["saw"] for row in out if row["user"] == user] for user in models}
            assert found == wanted, way
            if compacted:
                list(kit.store.compact(full=True))
    held = {(user, page, n) for user, model in models.items() for page, n in model.pages.items()}
    for way, kit in kits.items():
        assert {(row["user"], row["key"], row["value"]) for row in kit.state("kit__pages")} == held, way


def _kit(how: str, size: StoreSettings | None) -> ProcessKit:
    return ProcessKit(script(how), rows=ROWS, keys=["user"], settings=size, location=f"memory://prefetch-{next(PLACES)}")


class _Row:
    def __init__(self, row: dict[str, Any]) -> None:
        self.__dict__.update(row)
