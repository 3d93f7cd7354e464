"""Lists, maps and sets under every way of prefetching: the same answers, and no more read than was asked for."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodplain.errors import BadInput
from floodplain.metrics import LOOKUP_ROWS, LOOKUPS
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import List, Map, Set
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, op string, page string, n long"


class Touch(KeyedProcess):
    """Touches one entry of a map in each way there is."""

    output = "got long, there boolean, any boolean, first string"
    pages = Map("string", "long", prefetch="lazy")

    def process(self, key, rows, ctx):
        page = rows[0].page
        if rows[0].op == "read":
            yield self.pages.get(page), self.pages.contains(page), None, None
        elif rows[0].op == "exists":
            yield None, None, self.pages.exists(), next(iter(self.pages))
        else:
            self.pages.put(page, 1)
            self.pages.merge(page, 2)
            self.pages.merge("other" + page, 3)
            self.pages.remove("gone" + page)


class TouchNamed(Touch):
    pages = Map("string", "long", prefetch="page")


class TouchAll(Touch):
    pages = Map("string", "long")


ENTRIES = 1_000_000


def big_map(process: KeyedProcess, settings: StoreSettings | None = None) -> ProcessKit:
    kit = ProcessKit(process, rows=ROWS, keys=["user"], settings=settings)
    pages = pa.array([f"/{number}" for number in range(ENTRIES)])
    kit.writer.put("kit__pages", pa.table({"user": pa.repeat("u", ENTRIES), "key": pages, "value": pa.repeat(7, ENTRIES)}))
    return kit


def rows_read(kit: ProcessKit, row: dict[str, Any], table: str = "kit__pages") -> tuple[list[dict[str, Any]], int, int]:
    """The output of an epoch of one row, how many lookups of the table it took, and how many rows they gave."""
    before = [kit.store.counters.get(name, table) for name in (LOOKUPS, LOOKUP_ROWS)]
    out = kit.epoch([{"user": "u", "n": 0, **row}])
    return out, *(kit.store.counters.get(name, table) - old for name, old in zip((LOOKUPS, LOOKUP_ROWS), before, strict=True))


@pytest.mark.parametrize(
    "kit",
    [
        lambda: big_map(Touch()),
        lambda: big_map(TouchNamed()),
        lambda: big_map(TouchAll(), StoreSettings(key_groups=16, prefetch_bytes=1 << 20, chunk_bytes=1 << 18)),
    ],
    ids=["lazy", "by the row", "all, over budget"],
)
def test_one_entry_of_a_large_map_is_touched_alone(kit):
    kit = kit()
    assert rows_read(kit, {"op": "write", "page": "/5"}) == ([], 0, 0)
    out, lookups, rows = rows_read(kit, {"op": "read", "page": "/5"})
    assert (out[0]["got"], out[0]["there"], lookups, rows) == (3, True, 1, 1)
    held = kit.store.snapshot().table("kit__pages").to_arrow()
    assert held.filter(pc.field("key") == "other/5").column("value").to_pylist() == [3]


def test_whether_there_is_any_entry_reads_a_piece_of_a_large_map():
    kit = big_map(Touch(), StoreSettings(key_groups=16, chunk_bytes=1 << 16, window_bytes=1 << 18))
    out, lookups, rows = rows_read(kit, {"op": "exists", "page": "/"})
    assert out[0]["any"] is True and lookups == 2 and rows < ENTRIES / 10


class Blind(KeyedProcess):
    """Only writes."""

    pages = Map("string", "long")
    seen = Set("string")
    trail = List("string")
    output = "user string"

    def process(self, key, rows, ctx):
        for row in rows:
            self.pages.put(row.page, row.n)
            self.pages.merge(row.page, 1)
            self.seen.add(row.page)
            self.seen.remove("x")
            self.trail.append(row.page)


@pytest.mark.parametrize("prefetch", ["all", "lazy", "page"])
def test_writing_reads_nothing(prefetch):
    blind = type(
        "Blinded", (Blind,), {"pages": Map("string", "long", prefetch=prefetch), "seen": Set("string", prefetch=prefetch)}
    )
    kit = ProcessKit(blind(), rows=ROWS, keys=["user"])
    for _ in range(2):
        kit.epoch([{"user": user, "op": "", "page": page, "n": 1} for user in "uv" for page in "abc"])
    assert [kit.store.counters.get(LOOKUPS, f"kit__{name}") for name in ("pages", "seen", "trail")] == [0, 0, 0]
    assert len(kit.state("kit__pages")) == 6 and len(kit.state("kit__trail")) == 12


class Reading(KeyedProcess):
    pages = Map("string", "long", prefetch="click.page, page")
    output = "user string, sum long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.pages.merge(row.page, 1)
        yield (
            key.user,
            sum(self.pages.get(row.page) + self.pages.get(row.click["page"] if row.click else None, 0) for row in rows),
        )


def test_entries_that_the_rows_name_come_in_one_lookup():
    kit = ProcessKit(Reading(), rows="user string, page string, click struct<page: string, n: long>", keys=["user"])
    rows = [
        {"user": f"u{number % 50}", "page": f"/{number % 7}", "click": {"page": f"/{number % 5}", "n": 1} if number % 3 else None}
        for number in range(400)
    ]
    first = kit.epoch(rows)
    assert kit.store.counters.get(LOOKUPS, "kit__pages") == 1
    second = kit.epoch(rows)
    assert kit.store.counters.get(LOOKUPS, "kit__pages") == 2
    assert sum(row["sum"] for row in second) == 2 * sum(row["sum"] for row in first)


class Chained(KeyedProcess):
    trail = List("long")
    output = "user string, n long, first long"

    def process(self, key, rows, ctx):
        before = self.trail.get()
        self.trail.extend(range(len(before), len(before) + 20))
        yield key.user, len(self.trail), next(iter(self.trail))
        ctx.timer(0)

    def on_timer(self, key, at, ctx):
        yield key.user, -len(self.trail), self.trail.get()[-1]


@pytest.mark.parametrize("budget, most", [(64 << 20, 1), (20_000, 40)])
def test_keys_beyond_the_budget_come_in_further_batches(budget, most):
    settings = StoreSettings(key_groups=16, prefetch_bytes=budget, chunk_bytes=4096)
    kit = ProcessKit(Chained(), rows=ROWS, keys=["user"], has_watermark=True, settings=settings)
    rows = [{"user": f"u{number}", "op": "", "page": "", "n": 0} for number in range(2_000)]
    kit.epoch(rows)
    before = kit.store.counters.get(LOOKUPS, "kit__trail")
    assert {(row["n"], row["first"]) for row in kit.epoch(rows)} == {(40, 0)}
    lookups = kit.store.counters.get(LOOKUPS, "kit__trail") - before
    assert lookups <= most and (lookups > 1) == (most > 1)
    out = kit.epoch(rows[:3], watermark_ms=1)
    assert len(out) == 2_003 and {(row["n"], row["first"]) for row in out[3:] if row["user"] not in ("u0", "u1", "u2")} == {
        (-40, 39)
    }


@pytest.mark.parametrize(
    "prefetch, words",
    [("nope", "operator kit, state pages, prefetch 'nope': rows have no column 'nope'; they have user, op, page, n"),
     ("page.host", "'page' is a string and has no field 'host'"),
     ("page.", "expected the name of a column or field at position 6"),
     ("lower(page)", r"unexpected '\(' at position 6"),
     ("", "expected the name")],
)  # fmt: skip
def test_an_expression_that_makes_no_sense_is_refused(prefetch, words):
    with pytest.raises(Exception, match=words):
        kit = ProcessKit(type("P", (Touch,), {"pages": Map("string", "long", prefetch=prefetch)})(), rows=ROWS, keys=["user"])
        kit.epoch([{"user": "u", "op": "read", "page": "/", "n": 1}])


def test_an_expression_of_another_type_is_refused_and_quoted_names_are_read():
    class Numbers(KeyedProcess):
        pages = Map("long", "long", prefetch="`a ``b`")
        output = "n long"

        def process(self, key, rows, ctx):
            yield (self.pages.get(1, 5),)

    kit = ProcessKit(Numbers(), rows="user string, `a ``b` string", keys=["user"])
    assert kit.epoch([{"user": "u", "a `b": "1"}]) == [{"n": 5}]
    with pytest.raises(Exception, match="cannot name an entry of type int64"):
        kit.epoch([{"user": "u", "a `b": "one"}])


def test_a_list_has_no_entries_to_name():
    with pytest.raises(BadInput, match="use 'all' or 'lazy'"):
        List("string", prefetch="page")


class Odd(KeyedProcess):
    """Entry keys that Python can write in several ways."""

    at = Map("struct<a: int, b: string>", "long", prefetch="lazy")
    f = Map("float", "long", prefetch="lazy")
    d = Map("double", "long", prefetch="lazy")
    t = Map("timestamp", "string")
    output = "saw string"

    def process(self, key, rows, ctx):
        if rows[0].op == "write":
            self.at.put({"a": 1, "b": "x"}, 1)
            self.f.put(0.1, 1)
            self.d.put(float("nan"), 1)
            self.d.put(0.0, 2)
            self.t.put(dt.datetime(2026, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))), "new year")
        at = [self.at.get(key) for key in ({"b": "x", "a": 1}, (1, "x"))]
        floats = self.f.get(0.1), self.d.get(float("nan")), self.d.get(-0.0)
        yield (repr([*at, *floats, self.t.get(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))]),)


def test_entry_keys_are_equal_as_spark_has_it():
    kit = ProcessKit(Odd(), rows=ROWS, keys=["user"])
    for op in ("write", "read"):
        assert kit.epoch([{"user": "u", "op": op, "page": "", "n": 0}]) == [{"saw": "[1, 1, 1, 1, 2, 'new year']"}]


class Unmergeable(KeyedProcess):
    pages = Map("string", "string")
    output = "n long"

    def process(self, key, rows, ctx):
        self.pages.merge("a", "b")


def test_a_map_without_a_merge_says_so():
    kit = ProcessKit(Unmergeable(), rows=ROWS, keys=["user"])
    with pytest.raises(Exception, match="operator kit, state pages: values of type string have no merge"):
        kit.epoch([{"user": "u", "op": "", "page": "", "n": 0}])


class Failing(KeyedProcess):
    """Changes what the row names, and fails behind it if the row says so."""

    output = "user string, saw string"

    def process(self, key, rows, ctx):
        for row in rows:
            self.pages.put(row.page, row.n)
            self.pages.merge("all", row.n)
            self.pages.remove("x")
            self.trail.append(row.page)
            if row.op == "fail":
                self.pages.clear()
                self.trail.clear()
                raise ValueError("no")
        yield key.user, repr((sorted(self.pages.items()), self.trail.get()))


@pytest.mark.parametrize("prefetch", ["all", "lazy", "page"])
def test_what_a_failed_row_did_is_undone(prefetch):
    states = {"pages": Map("string", "long", prefetch=prefetch), "trail": List("string", prefetch="lazy")}
    kit = ProcessKit(type("Failing", (Failing,), states)(), rows=ROWS, keys=["user"], on_error="dead_letter")
    kit.epoch([{"user": "u", "op": "", "page": page, "n": 1} for page in "ax"])
    given = [("", "b", 2), ("fail", "c", 9), ("", "d", 3)]
    out = kit.epoch([{"user": "u", "op": op, "page": page, "n": n} for op, page, n in given])
    wanted = sorted([("a", 1), ("b", 2), ("d", 3), ("all", 7)]), ["a", "x", "b", "d"]
    assert out[-1]["saw"] == repr(wanted)
    assert {(row["key"], row["value"]) for row in kit.state("kit__pages")} == set(wanted[0])
