"""Process functions on Arrow tables: every kind of state, and the same results as key by key."""

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput, UserError
from floodplain.metrics import LOOKUPS
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state import frames
from floodplain.state.descriptors import Aggregating, List, Map, Reducing, Set, Value
from floodplain.testing.process_kit import ProcessKit
from tests.operators.kernel.test_task import add, average, lift

ROWS = "user string, page string, at long"


class States:
    n = Value("long", default=0)
    last = Value("string", ttl="1 second")
    best = Value("long", default=-1, nullable=False)
    total = Reducing("long", "sum", default=0)
    mean = Aggregating("double", "struct<n: long, total: double>", "double", lift=lift, merge=add, finish=average)
    trail = List("string")
    pages = Map("string", "long")
    recent = Map("string", "long", ttl="1 second")
    seen = Set("string")
    fired = Value("long", default=0)
    output = "user string, what string, value string"


class ByKey(States, KeyedProcess):
    def process(self, key, rows, ctx):
        if any(row.page == "z" for row in rows):
            for state in (self.best, self.total, self.mean, self.trail, self.pages, self.seen):
                state.clear()
        for row in rows:
            self.n.set(self.n.get() + 1)
            self.total.add(row.at)
            self.mean.add(float(row.at))
            self.trail.append(row.page)
            self.pages.merge(row.page, 1)
            self.recent.put(row.page, row.at)
            self.seen.add(row.page)
            ctx.timer(2 * row.at + 10)
            ctx.processing_timer(row.at * 100)
        for row in rows:
            if row.page == "r":
                self.pages.remove("a")
                self.seen.remove("a")
                ctx.delete_timer(2 * row.at + 12)
        self.best.set(max(row.at for row in rows))
        self.last.set(rows[-1].page)
        yield key.user, "values", repr((self.n.get(), self.last.get(), self.best.get(), self.total.get(), self.mean.get()))
        yield key.user, "a, b", repr([(self.pages.get(page), self.recent.get(page), self.seen.contains(page)) for page in "ab"])
        yield key.user, "trail", repr(self.trail.get())
        yield key.user, "pages", repr(sorted(self.pages.items()))
        yield key.user, "seen", repr(sorted(self.seen))
        yield key.user, "timers", repr(ctx.timers())

    def on_timer(self, key, at, ctx):
        self.fired.set(self.fired.get() + 1)
        if at % 4 == 2:
            ctx.timer(at + 1)
        if at % 2:
            self.trail.append("fired")
            self.best.clear()
        yield key.user, "fired", str(at)


class AtOnce(States, KeyedBatchProcess):
    def process(self, batch, ctx):
        of, page, at = batch.key_of_row, batch.rows["page"], batch.rows["at"]
        for name in ("best", "total", "mean", "trail", "pages", "seen"):
            batch.clear(name, of[pc.equal(page, "z").to_numpy()])
        there = np.flatnonzero(batch.rows_per_key())
        batch.set("n", batch.state("n").to_numpy()[there] + batch.rows_per_key()[there], there)
        batch.add("total", at, of)
        batch.add("mean", at, key_of=of)
        batch.append("trail", page, of)
        batch.merge("pages", page, np.ones(len(of), np.int64), of)
        batch.put("recent", page, at, of)
        batch.add("seen", page, of)
        batch.timer(2 * at.to_numpy() + 10, of)
        batch.processing_timer(at.to_numpy() * 100, of)
        removes = pc.equal(page, "r")
        gone = of[removes.to_numpy()]
        for name in ("pages", "seen"):
            batch.remove(name, ["a"] * len(gone), gone)
        batch.delete_timer(2 * at.filter(removes).to_numpy() + 12, gone)
        if len(of):
            batch.set("best", np.maximum.reduceat(at.to_numpy(), batch.starts[:-1]), np.arange(len(batch.starts) - 1))
            batch.set("last", page, of)
        return self._told(batch)

    def on_timers(self, batch, due, ctx):
        of, time = due["key_of"].to_numpy(), due["time"].to_numpy()
        fired, times = np.unique(of, return_counts=True)
        batch.set("fired", batch.state("fired").to_numpy()[fired] + times, fired)
        # Key by key, a timer that is due but has not fired yet is still set.
        later = (time % 4 == 2) & ~np.isin(of * 1_000_000 + time + 1, of * 1_000_000 + time)
        batch.timer(time[later] + 1, of[later])
        again = of[time % 2 == 1]
        batch.append("trail", pa.repeat("fired", len(again)), again)
        batch.clear("best", again)
        users = batch.keys["user"].take(due["key_of"])
        return pa.table({"user": users, "what": pa.repeat("fired", len(due)), "value": due["time"].cast(pa.string())})

    def _told(self, batch):
        """The expected output: that of the per-key process, as one table."""
        values = [batch.state(name).to_pylist() for name in ("n", "last", "best", "total", "mean")]
        users = batch.keys["user"].to_pylist()[: len(batch.starts) - 1]
        asked = ["a", "b"] * len(users), np.repeat(np.arange(len(users)), 2)
        found = [batch.get("pages", *asked), batch.get("recent", *asked), batch.contains("seen", *asked)]
        entries = list(zip(*(column.to_pylist() for column in found), strict=True))
        held = {name: batch.entries(name).to_pylist() for name in ("trail", "pages", "seen")} | {
            "timers": batch.timers().to_pylist()
        }
        out = []
        for number, user in enumerate(users):
            own = {name: [row for row in rows if row["key_of"] == number] for name, rows in held.items()}
            out.append((user, "values", repr(tuple(column[number] for column in values))))
            out.append((user, "a, b", repr(entries[2 * number : 2 * number + 2])))
            out.append((user, "trail", repr([row["value"] for row in own["trail"]])))
            out.append((user, "pages", repr(sorted((row["key"], row["value"]) for row in own["pages"]))))
            out.append((user, "seen", repr(sorted(row["element"] for row in own["seen"]))))
            out.append((user, "timers", repr([row["time"] for row in own["timers"]])))
        return pa.Table.from_pylist([dict(zip(("user", "what", "value"), row, strict=True)) for row in out], TOLD)


TOLD = pa.schema({"user": pa.string(), "what": pa.string(), "value": pa.string()})
TABLES = ["kit", *(f"kit__{name}" for name in ("trail", "pages", "recent", "seen", "event_timers", "processing_timers"))]
row = st.tuples(st.sampled_from(["u", "v", "w", None]), st.sampled_from("abczr"), st.integers(0, 60))
epoch = st.tuples(st.lists(row, max_size=8), st.integers(0, 40), st.integers(0, 700))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.lists(epoch, min_size=1, max_size=5))
def test_all_at_once_gives_what_key_by_key_gives(epochs):
    kits = [ProcessKit(process, rows=ROWS, keys=["user"]) for process in (ByKey(), AtOnce())]
    watermark_ms = now_ms = 0
    for rows, later_ms, more_ms in epochs:
        watermark_ms, now_ms = watermark_ms + later_ms, now_ms + more_ms
        named = [dict(zip(("user", "page", "at"), given, strict=True)) for given in rows]
        outputs = [kit.epoch(named, watermark_ms=watermark_ms, now_ms=now_ms) for kit in kits]
        assert sorted(outputs[0], key=repr) == sorted(outputs[1], key=repr)
        for table in TABLES:
            held = [sorted(kit.state(table), key=repr) for kit in kits]
            assert held[0] == held[1], table


def kit_of(base: type, **kept: Any) -> ProcessKit:
    """A kit for a batch process whose body is one function."""
    return ProcessKit(type("Once", (base,), kept)(), rows=ROWS, keys=["user"], has_watermark=True)


class Plain(States, KeyedBatchProcess):
    pass


def rows(*given: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [dict(zip(("user", "page", "at"), values, strict=True)) for values in given]


class Blind(States, KeyedBatchProcess):
    def process(self, batch, ctx):
        of, page, at = batch.key_of_row, batch.rows["page"], batch.rows["at"]
        batch.add("total", at, of)
        batch.append("trail", page, of)
        batch.merge("pages", page, at, of)
        batch.put("recent", page, at, of)
        batch.add("seen", page, of)
        batch.timer(at, of)


def test_what_is_only_written_is_not_read():
    kit = kit_of(Blind)
    for _ in range(2):
        kit.epoch(rows(("u", "a", 5), ("v", "b", 6), ("u", "a", 7)))
    assert [kit.store.counters.get(LOOKUPS, table) for table in TABLES[:-2]] == [0] * 5
    assert {found["user"]: found["total"] for found in kit.state()} == {"u": 24, "v": 12}
    assert {(found["user"], found["key"]): found["value"] for found in kit.state("kit__pages")} == {
        ("u", "a"): 24,
        ("v", "b"): 12,
    }


class Many(States, KeyedBatchProcess):
    def process(self, batch, ctx):
        found = batch.get("pages", batch.rows["page"], batch.key_of_row)
        batch.put("pages", batch.rows["page"], batch.rows["at"], batch.key_of_row)
        return pa.table({"user": batch.rows["user"], "what": batch.rows["page"], "value": found.cast(pa.string())})


def test_entries_of_many_keys_come_in_one_lookup():
    kit = kit_of(Many)
    given = [(f"u{number % 100}", f"/{number}", number) for number in range(1_000)]
    assert {found["value"] for found in kit.epoch(rows(*given))} == {None}
    found = kit.epoch(rows(*given[::-1], ("u0", "/none", 1)))
    assert kit.store.counters.get(LOOKUPS, "kit__pages") == 2
    assert {(row["what"], row["value"]) for row in found} == {
        ("/none", None),
        *((f"/{number}", str(number)) for number in range(1_000)),
    }


class Nulls(KeyedBatchProcess):
    n = Value("long", default=7)
    m = Value("long", default=8)
    output = "user string, n long, there boolean"

    def process(self, batch, ctx):
        batch.set("m", [1], [0])
        return pa.table({"user": batch.keys["user"], "n": batch.state("n"), "there": batch.exists("n")})


class SetNull(KeyedProcess):
    n = Value("long", default=7)
    m = Value("long", default=8)
    output = "user string, n long, there boolean"

    def process(self, key, rows, ctx):
        self.n.set(None)


def test_a_null_that_was_set_is_not_the_default_and_outlives_its_neighbours():
    kit = kit_of(SetNull)
    kit.epoch(rows(("u", "", 0)))
    again = ProcessKit(Nulls(), rows=ROWS, keys=["user"], location=kit.store.history.blobs.url)
    for _ in range(2):
        out = {found["user"]: (found["n"], found["there"]) for found in again.epoch(rows(("u", "", 0), ("v", "", 0)))}
        assert out == {"u": (None, True), "v": (7, False)}


@pytest.mark.parametrize("frame", ["polars", "pandas"])
def test_frames_come_and_go(frame):
    class Frames(KeyedBatchProcess):
        n = Value("long", default=0)
        name = Value("string")
        total = Reducing("long", "sum", default=0)
        output = "user string, n long, total long"
        side_outputs: ClassVar = {"lines": "user string, page string"}

        def process(self, batch, ctx):
            lines = getattr(batch, f"rows_{frame}")("n")
            assert list(lines.columns) == ["key_of", "user", "page", "at", "n"] and len(lines) == len(batch.rows)
            if frame == "polars":
                import polars as pl

                batch.set("n", lines.group_by("key_of").agg(n=pl.col("n").first() + pl.len()))
            else:
                batch.set("n", (lines.groupby("key_of")["n"].first() + lines.groupby("key_of").size()).rename("n").reset_index())
            ctx.emit("lines", lines)
            batch.set("name", lines["page"], key_of=lines["key_of"])
            batch.add("total", lines["at"], lines["key_of"])
            return getattr(batch, f"to_{frame}")()

    kit = ProcessKit(Frames(), rows=ROWS, keys=["user"])
    kit.epoch(rows(("u", "a", 5), ("v", "b", 6), ("u", "a", 7)))
    out = kit.epoch(rows(("u", "c", 1), ("w", "d", 6)))
    assert sorted(out, key=repr) == [{"user": "u", "n": 3, "total": 13}, {"user": "w", "n": 1, "total": 6}]
    assert sorted(kit.sides["lines"], key=repr) == [{"user": "u", "page": "c"}, {"user": "w", "page": "d"}]
    assert {found["user"]: found["name"] for found in kit.state()} == {"u": "c", "v": "b", "w": "d"}


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(frames, "import_module", lambda name: __import__(f"no_such_{name}"))
    with pytest.raises(BadInput, match=r"polars is not installed here: pip install 'floodplain\[polars\]'"):
        frames.polars_frame(pa.table({}))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda batch: batch.state("nope"), "operator kit has no state 'nope'; it has: n, last, best, total"),
        (lambda batch: batch.append("n", [1, 2]), "operator kit, state n is a Value: this is for a List"),
        (lambda batch: batch.set("n", [1]), "state n: there are 1 values, and there are 2 keys: pass the key number"),
        (lambda batch: batch.set("n", [1], [0, 1]), "state n: there are 1 values, and key_of has 2"),
        (lambda batch: batch.set("n", [1], [2]), "state n: key_of must have key numbers, from 0 to 1"),
        (lambda batch: batch.set("n", ["a", "b"]), "state n: 'a' of key {'user': 'u'} does not fit int64"),
        (lambda batch: batch.set("n", pa.table({"m": [1, 2]})), "state n: the frame has no column 'n'; it has m"),
        (lambda batch: batch.put("pages", ["a"], [1, 2], [0]), "state pages: there are 1 entry keys and 2 values"),
        (lambda batch: batch.get("pages", [["a"], ["b"]]), "state pages: \\['a'\\] of key {'user': 'u'} does not fit string"),
        (lambda batch: batch.timer([None, 1]), "state event_timers: a timer needs a time"),
        (lambda batch: pa.array([1]), "is not an Arrow table"),
        (lambda batch: batch.keys, "operator kit, output: column what is missing; there are: user"),
        (lambda batch: batch.rows_arrow("n").select(["user"]), "output: column what is missing"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(call, words):
    kit = kit_of(Plain, process=lambda self, batch, ctx: call(batch))
    with pytest.raises(UserError, match=words):
        kit.epoch(rows(("u", "a", 5), ("v", "b", 6)))


def test_a_context_of_one_key_is_no_use_here():
    kit = kit_of(Plain, process=lambda self, batch, ctx: ctx.timer(ctx.watermark + ctx.epoch))
    with pytest.raises(UserError, match=r"ctx.timer is for one key: .*batch.timer"):
        kit.epoch(rows(("u", "a", 5)))
