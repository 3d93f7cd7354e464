"""The keyed kernel through the test kit: state, timers, lateness, time to live."""

import random
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodplain.errors import Corrupt, UserError
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Aggregating, List, Map, Reducing, Set, Value
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, page string, at long"


def row(user: str | None, page: str = "/", at: int = 0) -> dict[str, object]:
    return {"user": user, "page": page, "at": at}


class Views(KeyedProcess):
    views = Value("long", default=0)
    last = Value("string")
    pages = Map("string", "long")
    seen = Set("string")
    trail = List("string")
    total = Reducing("long", "sum", default=0)
    output = "user string, views long, trail array<string>, total long"

    def process(self, key, rows, ctx):
        for given in rows:
            self.views.set(self.views.get() + 1)
            self.pages.merge(given.page, 1)
            self.seen.add(given.page)
            self.trail.append(given.page)
            self.total.add(2)
        self.last.set(rows[-1].page)
        yield key.user, self.views.get(), self.trail.get(), self.total.get()


def test_every_kind_of_state_carries_over_epochs():
    kit = ProcessKit(Views(), rows=ROWS, keys=["user"])
    out = {found["user"]: found for found in kit.epoch([row("ada", "/a"), row("bob", "/b"), row("ada", "/c")])}
    assert out["bob"] == {"user": "bob", "views": 1, "trail": ["/b"], "total": 2}
    assert out["ada"] == {"user": "ada", "views": 2, "trail": ["/a", "/c"], "total": 4}
    out = {found["user"]: found for found in kit.epoch([row("ada", "/a"), row(None, "/n")])}
    assert out["ada"] == {"user": "ada", "views": 3, "trail": ["/a", "/c", "/a"], "total": 6}
    assert out[None]["views"] == 1
    state = {found["user"]: found for found in kit.state()}
    assert (state["ada"]["views"], state["ada"]["last"], state["bob"]["total"]) == (3, "/a", 2)
    pages = {(found["user"], found["key"]): found["value"] for found in kit.state("kit__pages")}
    assert pages == {("ada", "/a"): 2, ("ada", "/c"): 1, ("bob", "/b"): 1, (None, "/n"): 1}
    assert len(kit.state("kit__seen")) == 4


class Clearing(KeyedProcess):
    n = Value("long")
    pages = Map("string", "long")
    trail = List("string")
    output = "user string, n long, pages array<string>, trail array<string>"

    def process(self, key, rows, ctx):
        for given in rows:
            match given.page:
                case "clear":
                    self.n.clear()
                    self.pages.clear()
                    self.trail.clear()
                case "drop":
                    self.pages.remove("/a")
                case page:
                    self.n.set(None if page == "null" else len(page))
                    self.pages.put(page, 1)
                    self.trail.append(page)
        yield key.user, self.n.get() if self.n.exists() else -1, sorted(self.pages), self.trail.get()


def test_clearing_and_setting_null_are_not_the_same():
    kit = ProcessKit(Clearing(), rows=ROWS, keys=["user"])
    kit.epoch([row("u", "/a"), row("u", "/bb")])
    assert kit.epoch([row("u", "null")])[0] == {
        "user": "u",
        "n": None,
        "pages": ["/a", "/bb", "null"],
        "trail": ["/a", "/bb", "null"],
    }
    assert kit.epoch([row("u", "drop")])[0]["pages"] == ["/bb", "null"]
    assert kit.epoch([row("u", "clear"), row("u", "/z")])[0] == {"user": "u", "n": 2, "pages": ["/z"], "trail": ["/z"]}
    assert kit.epoch([row("u", "clear")])[0] == {"user": "u", "n": -1, "pages": [], "trail": []}
    assert kit.state() == [] and kit.state("kit__pages") == [] and kit.state("kit__trail") == []


class Alarm(KeyedProcess):
    fired = Value("long", default=0)
    output = "user string, at long, fired long"

    def process(self, key, rows, ctx):
        for given in rows:
            if given.page == "delete":
                ctx.delete_timer(given.at)
            else:
                ctx.timer(given.at)

    def on_timer(self, key, at, ctx):
        self.fired.set(self.fired.get() + 1)
        if at == 100:
            ctx.timer(101)
        yield key.user, at, self.fired.get()


def test_timers_fire_by_time_after_rows_and_may_set_others():
    kit = ProcessKit(Alarm(), rows=ROWS, keys=["user"])
    assert kit.epoch([row("u", at=100), row("v", at=300), row("u", at=500)], watermark_ms=50) == []
    assert kit.epoch([], watermark_ms=99) == []
    fired = [(found["user"], found["at"]) for found in kit.epoch([row("w", at=20)], watermark_ms=300)]
    assert fired == [("w", 20), ("u", 100), ("u", 101), ("v", 300)]
    assert kit.epoch([row("u", "delete", 500)], watermark_ms=400) == []
    assert kit.epoch([], watermark_ms=1000) == []
    assert kit.state("kit__event_timers") == []


def test_late_rows_are_left_out_and_counted():
    kit = ProcessKit(Views(), rows=ROWS, keys=["user"], event_time="at")
    kit.epoch([row("u", at=100)], watermark_ms=90)
    assert kit.epoch([row("u", at=89), row("u", at=90), row("u", at=91)], watermark_ms=95)[0]["views"] == 2
    assert kit.late == 2


class Short(KeyedProcess):
    a = Value("long", default=0, ttl="1 second")
    b = Value("long", default=0)
    trail = List("long", ttl="1 second")
    output = "a long, b long, trail array<long>"

    def process(self, key, rows, ctx):
        yield self.a.get(), self.b.get(), self.trail.get()
        if rows[0].page == "a":
            self.a.set(rows[0].at)
            self.trail.append(rows[0].at)
        else:
            self.b.set(rows[0].at)


def test_a_state_ends_by_itself_and_not_with_its_neighbours():
    kit = ProcessKit(Short(), rows=ROWS, keys=["user"])
    kit.epoch([row("u", "a", 1)], now_ms=0)
    assert kit.epoch([row("u", "b", 2)], now_ms=900) == [{"a": 1, "b": 0, "trail": [1]}]
    assert kit.epoch([row("u", "b", 3)], now_ms=1000) == [{"a": 0, "b": 2, "trail": []}]


EVENT = {"ttl": "10 ms", "ttl_clock": "event"}


class Ending(KeyedProcess):
    """Every kind of state ends by event time, one value by processing time."""

    value = Value("long", **EVENT)
    trail = List("long", **EVENT)
    pages = Map("string", "long", **EVENT)
    seen = Set("string", **EVENT)
    total = Reducing("long", "sum", **EVENT)
    timed = Value("long", ttl="10 ms")
    lasting = Value("long")
    output = "user string, there array<boolean>, timed boolean, lasting boolean"

    def process(self, key, rows, ctx):
        there = [state.exists() for state in (self.value, self.trail, self.pages, self.seen, self.total)]
        yield key.user, there, self.timed.exists(), self.lasting.exists()
        if rows[0].page == "set":
            for state in (self.value, self.timed, self.lasting):
                state.set(1)
            self.trail.append(1)
            self.pages.merge("/", 1)
            self.seen.add("/")
            self.total.add(1)


def test_state_ends_by_the_clock_that_it_names():
    kit = ProcessKit(Ending(), rows=ROWS, keys=["user"], has_watermark=True)

    def there(page: str = "", **times: int) -> tuple[list[bool], bool, bool]:
        (found,) = kit.epoch([row("u", page)], **times)
        return found["there"], found["timed"], found["lasting"]

    there("set", watermark_ms=100, now_ms=0)
    assert there(watermark_ms=109, now_ms=9) == ([True] * 5, True, True)
    assert there(watermark_ms=109, now_ms=1000) == ([True] * 5, False, True), "the events' time stood still"
    assert there("set", watermark_ms=109, now_ms=1000) == ([True] * 5, False, True)
    assert there(watermark_ms=118, now_ms=1009) == ([True] * 5, True, True), "written anew, it lives as long again"
    assert there(watermark_ms=119, now_ms=1009) == ([True] * 5, True, True), "judged by the watermark that rows are late by"
    assert there("set", watermark_ms=119, now_ms=1010) == ([False] * 5, False, True)


def test_what_is_written_without_any_time_does_not_end_until_it_is_written_again():
    kit = ProcessKit(Ending(), rows=ROWS, keys=["user"], has_watermark=True)
    kit.epoch([row("u", "set")])
    for page, watermark_ms in (("", None), ("", 10**6), ("set", 10**6), ("", 10**6 + 10)):
        assert kit.epoch([row("u", page)], watermark_ms=watermark_ms)[0]["there"] == [True] * 5
    there = [False, True, False, False, False]
    assert kit.epoch([row("u")])[0]["there"] == there, "the first element of the list was not written again"


class Ordered(KeyedProcess):
    order_by = ("at", "page")
    output = "user string, seen array<string>"

    def process(self, key, rows, ctx):
        yield key.user, [f"{given.at} {given.page}" for given in rows]


def test_rows_of_a_key_come_in_the_declared_order_nulls_last():
    kit = ProcessKit(Ordered(), rows=ROWS, keys=["user"])
    given = [
        ("u", "b", 2),
        ("v", "z", 1),
        ("u", None, 1),
        ("u", "a", None),
        ("u", "a", 2),
        ("v", "a", 1),
        ("u", "c", 1),
        ("u", None, None),
    ]
    out = {found["user"]: found["seen"] for found in kit.epoch([row(*values) for values in given])}
    assert out == {"u": ["1 c", "1 None", "2 a", "2 b", "None a", "None None"], "v": ["1 a", "1 z"]}
    rng = random.Random(5)
    many = [row(f"u{rng.randrange(5)}", rng.choice("abc"), rng.randrange(3)) for _ in range(200)]
    out = {found["user"]: found["seen"] for found in kit.epoch(many)}
    for user, seen in out.items():
        mine = sorted((given["at"], given["page"]) for given in many if given["user"] == user)
        assert seen == [f"{at} {page}" for at, page in mine]


class OrderedByTime(Ordered):
    order_by = ("at",)


def test_rows_alike_in_the_declared_order_come_as_they_came():
    kit = ProcessKit(OrderedByTime(), rows=ROWS, keys=["user"])
    (found,) = kit.epoch([row("u", page, at) for page, at in (("z", 2), ("c", 1), ("a", 1), ("b", 1))])
    assert found["seen"] == ["1 c", "1 a", "1 b", "2 z"]


def average(values: pa.Array) -> pa.Array:
    return pc.divide(pc.struct_field(values, "total"), pc.cast(pc.struct_field(values, "n"), pa.float64()))


def lift(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array([1] * len(values), pa.int64()), values], ["n", "total"])


def add(older: pa.Array, newer: pa.Array) -> pa.Array:
    parts = [pc.add(pc.struct_field(older, name), pc.struct_field(newer, name)) for name in ("n", "total")]
    return pa.StructArray.from_arrays(parts, ["n", "total"])


class Average(KeyedProcess):
    mean = Aggregating("double", "struct<n: long, total: double>", "double", lift=lift, merge=add, finish=average)
    output = "user string, mean double"

    def process(self, key, rows, ctx):
        for given in rows:
            self.mean.add(float(given.at))
        yield key.user, self.mean.get()


def test_aggregating_lifts_folds_and_finishes():
    kit = ProcessKit(Average(), rows=ROWS, keys=["user"])
    assert kit.epoch([row("u", at=1), row("u", at=3)]) == [{"user": "u", "mean": 2.0}]
    assert kit.epoch([row("u", at=8)]) == [{"user": "u", "mean": 4.0}]


class Count(KeyedBatchProcess):
    n = Value("long", default=0, nullable=False)
    output = "user string, n long"

    def process(self, batch, ctx):
        counts = pc.add(batch.state("n"), pa.array(batch.rows_per_key()))
        batch.set("n", counts)
        return batch.keys.append_column("n", counts)


def test_a_batch_process_sees_all_keys_at_once():
    kit = ProcessKit(Count(), rows=ROWS, keys=["user"])
    kit.epoch([row("a"), row("b"), row("a")])
    assert sorted(kit.epoch([row("a"), row("c")]), key=lambda found: found["user"]) == [
        {"user": "a", "n": 3},
        {"user": "c", "n": 1},
    ]
    assert {found["user"]: found["n"] for found in kit.state()} == {"a": 3, "b": 1, "c": 1}


class Broken(KeyedProcess):
    output = "user string"
    n = Value("long")
    trail = List("long")

    def process(self, key, rows, ctx):
        match rows[0].page:
            case "first":
                raise ValueError("no such page")
            case "value":
                self.n.set("many")
            case "element":
                self.trail.append("far")
            case "timer":
                ctx.timer(50)
        for given in rows:
            if given.page == "broken":
                raise ValueError("no such page")
            yield (key.user,)
        if rows[0].page == "after":
            raise ValueError("no such page")

    def on_timer(self, key, at, ctx):
        raise KeyError("gone")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [row("ada", "first")],
            "ValueError in operator broken, epoch 1, key Key(user='ada'), row Row(user='ada', page='first', at=0): no",
        ),
        (
            [row("bob"), row("ada"), row("ada", "broken", 7), row("ada")],
            "epoch 1, key Key(user='ada'), row Row(user='ada', page='broken', at=7): no such page",
        ),
        ([row("ada"), row("ada", "broken", 8)], "row Row(user='ada', page='broken', at=8): no such page"),
        ([row("ada", "after"), row("ada")], "one of 2 rows, the first being Row(user='ada', page='after', at=0): no such page"),
        ([row("ada", "first"), row("ada")], "one of 2 rows, the first being Row(user='ada', page='first', at=0): no such page"),
        ([row("ada", "timer")], "KeyError in operator broken, epoch 1, key Key(user='ada'), timer at 50 ms: 'gone'"),
        (
            [row("bob"), row("ada", "value")],
            "Row(user='ada', page='value', at=0): state n: 'many' does not fit type int64: ",
        ),
        (
            [row("bob"), row("ada", "element")],
            "page='element', at=0): state trail: 'far' does not fit type int64: ",
        ),
        ([row("ada", "x" * 5000 + "broken"), row("ada", "broken")], "row Row(user='ada', page='broken', at=0): no such page"),
    ],
)
def test_an_error_names_operator_epoch_key_and_row(rows, message):
    kit = ProcessKit(Broken(), rows=ROWS, keys=["user"], name="broken")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        kit.epoch(rows, watermark_ms=100)
    assert len(str(caught.value)) < 1500
    assert kit.store.head.epoch == 0


class Damaged(KeyedProcess):
    n = Value("long")
    output = "user string"

    def process(self, key, rows, ctx):
        raise Corrupt("a run", "this", "that")


def test_damage_met_inside_a_function_is_not_its_fault():
    with pytest.raises(Corrupt):
        ProcessKit(Damaged(), rows=ROWS, keys=["user"]).epoch([row("ada")])
