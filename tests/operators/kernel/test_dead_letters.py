"""A process function that may fail: what a failed call did is undone, and what it failed on is kept."""

import json
from typing import ClassVar

import pytest

from floodplain.errors import BadInput, BadName, Corrupt
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import List, Map, Reducing, Set, Value
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, page string, at long"


def row(user: str, page: str = "/", at: int = 0) -> dict[str, object]:
    return {"user": user, "page": page, "at": at}


class Fragile(KeyedProcess):
    """Changes every kind of state by each row, then may fail in several ways."""

    output = "user string, n long"
    side_outputs: ClassVar = {"pages": "page string"}
    n = Value("long", default=0)
    tags = Value("array<string>")
    total = Reducing("long", "sum", default=0)
    trail = List("string")
    pages = Map("string", "long")
    seen = Set("string")

    def process(self, key, rows, ctx):
        for given in rows:
            self.n.set(self.n.get() + 1)
            tags = self.tags.get() or []
            tags.append(given.page)
            self.tags.set(tags)
            self.total.add(given.at)
            self.trail.append(given.page)
            self.pages.merge(given.page, 1)
            self.seen.add(given.page)
            ctx.timer(given.at)
            ctx.emit("pages", (given.page,) if given.page != "side" else (5,))
            match given.page:
                case "bad":
                    raise ValueError(f"bad at {given.at}")
                case "unfit":
                    yield key.user, "many"
                case "value":
                    self.n.set("many")
            yield key.user, self.n.get()
        if rows[-1].page == "after":
            self.trail.clear()
            self.pages.clear()
            self.seen.clear()
            self.total.clear()
            raise KeyError("after the rows")

    def on_timer(self, key, at, ctx):
        self.n.set(self.n.get() + 100)
        self.trail.append("fired")
        ctx.emit("pages", ("fired",))
        yield key.user, self.n.get()
        if at == 13:
            raise ValueError("an unlucky time")


def fragile() -> ProcessKit:
    return ProcessKit(Fragile(), rows=ROWS, keys=["user"], has_watermark=True, name="fragile", on_error="dead_letter")


TABLES = ("fragile", "fragile__trail", "fragile__pages", "fragile__seen", "fragile__event_timers")


def contents(kit: ProcessKit) -> dict[str, list]:
    return {table: sorted(kit.state(table), key=repr) for table in TABLES}


@pytest.mark.parametrize("page", ["bad", "unfit", "side"])
def test_a_row_that_fails_leaves_no_trace_but_its_letter(page):
    kit, clean = fragile(), fragile()
    good = [row("ada", "/a", 1), row("ada", "/b", 2), row("bob", "/c", 3)]
    for epoch in range(2):
        now_ms = 50 + epoch
        bad = row("ada", page, 9)
        out = kit.epoch([good[0], bad, good[1], good[2], bad], now_ms=now_ms)
        assert out == clean.epoch(good, now_ms=now_ms)
        assert kit.sides == clean.sides
        assert contents(kit) == contents(clean)
    letters = kit.state("fragile__dead_letters")
    assert [(letter["user"], letter["epoch"], json.loads(letter["row"])) for letter in letters] == [
        ("ada", epoch, bad) for epoch in (1, 1, 2, 2)
    ]
    assert len({letter["position"] for letter in letters}) == 4
    assert kit.dead == 4 and clean.dead == 0
    assert letters[2]["at"] == 51 and letters[2]["timer"] is None


def test_a_letter_says_what_happened_and_where():
    kit = fragile()
    kit.epoch([row("ada", "bad", 9)])
    (letter,) = kit.state("fragile__dead_letters")
    assert (letter["error"], letter["message"]) == ("ValueError", "bad at 9")
    assert letter["line"].startswith("test_dead_letters.py:") and "raise ValueError" in letter["line"]


@pytest.mark.parametrize("page", ["after", "value"])
def test_where_the_row_cannot_be_told_all_of_the_key_go(page):
    kit, clean = fragile(), fragile()
    for tested in (kit, clean):
        tested.epoch([row("ada", "/a", 1), row("bob", "/c", 3)])
    kit.epoch([row("ada", "/b", 2), row("ada", page, 5), row("bob", "/d", 4)])
    clean.epoch([row("bob", "/d", 4)])
    if page == "value":
        # Its own output row shows which one set it.
        clean = fragile()
        clean.epoch([row("ada", "/a", 1), row("bob", "/c", 3)])
        clean.epoch([row("ada", "/b", 2), row("bob", "/d", 4)])
    assert contents(kit) == contents(clean)
    assert [json.loads(letter["row"])["page"] for letter in kit.state("fragile__dead_letters")] == (
        ["/b", page] if page == "after" else [page]
    )


def test_a_timer_that_fails_is_a_letter_and_gone():
    kit = fragile()
    kit.epoch([row("ada", "/a", 13), row("ada", "/b", 14)])
    assert kit.epoch([], watermark_ms=20) == [{"user": "ada", "n": 102}]
    assert kit.sides == {"pages": [{"page": "fired"}]}
    (letter,) = kit.state("fragile__dead_letters")
    assert (letter["timer"], letter["row"], letter["message"]) == (13, None, "an unlucky time")
    assert [found["value"] for found in kit.state("fragile__trail")] == ["/a", "/b", "fired"]
    assert kit.state("fragile__event_timers") == []
    assert kit.epoch([], watermark_ms=30) == []


class Alarming(KeyedProcess):
    output = "user string, at long"

    def process(self, key, rows, ctx):
        for given in rows:
            ctx.delete_timer(5)
            ctx.timer(given.at)
            if given.page == "bad":
                raise ValueError

    def on_timer(self, key, at, ctx):
        yield key.user, at


def test_timers_set_and_deleted_by_a_failed_call_are_as_before():
    kit = ProcessKit(Alarming(), rows=ROWS, keys=["user"], has_watermark=True, on_error="dead_letter")
    kit.epoch([row("ada", at=5), row("bob", at=6)])
    # The failed call deleted the timer at 5 and set one at 7, which is due at once.
    assert kit.epoch([row("ada", "bad", at=7)], watermark_ms=10) == [{"user": "ada", "at": 5}, {"user": "bob", "at": 6}]
    assert kit.state("kit__event_timers") == []


class Unreadable(KeyedProcess):
    output = "user string"

    def process(self, key, rows, ctx):
        raise Corrupt("a run", "this", "that")


def test_state_that_cannot_be_read_makes_no_letters():
    with pytest.raises(Corrupt):
        ProcessKit(Unreadable(), rows=ROWS, keys=["user"], on_error="dead_letter").epoch([row("ada")])


class Whole(KeyedBatchProcess):
    output = "user string"


def test_only_functions_called_key_by_key_can_have_dead_letters():
    with pytest.raises(BadInput, match=r"needs a KeyedProcess.*Whole is not one"):
        ProcessKit(Whole(), rows=ROWS, keys=["user"], on_error="dead_letter")
    with pytest.raises(BadInput, match="on_error='ignore' is not known"):
        ProcessKit(Fragile(), rows=ROWS, keys=["user"], on_error="ignore")


class Taken(KeyedProcess):
    output = "user string"
    dead_letters = List("string")


def test_the_name_of_the_table_is_kept_free():
    with pytest.raises(BadName, match="dead_letters"):
        ProcessKit(Taken(), rows=ROWS, keys=["user"])


class Wide(KeyedProcess):
    output = "n long"

    def process(self, key, rows, ctx):
        raise ValueError


def test_key_columns_may_have_the_names_of_the_letters_own():
    kit = ProcessKit(Wide(), rows="row string, error binary, t timestamp", keys=["row", "error"], on_error="dead_letter")
    kit.epoch([{"row": "r", "error": b"\x01\xff", "t": 0}])
    (letter,) = kit.state("kit__dead_letters")
    assert (letter["row"], letter["error"], letter["error_"]) == ("r", b"\x01\xff", "ValueError")
    assert json.loads(letter["row_"]) == {"row": "r", "error": "01ff", "t": "1970-01-01T00:00:00+00:00"}
