"""Results do not tell whether misses are hidden: output in its order, side outputs, state and timers, epoch by epoch."""

from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import floodplain as fp
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import List, Map, Reducing, Set, Value
from floodplain.store.run.open_runs import OpenRuns
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit
from floodplain.tiers.blobs import Blobs
from tests.operators.joins.joining import ROWS as JOIN_ROWS
from tests.operators.joins.joining import SOME, ads, in_order, play, published
from tests.operators.kernel.remote import Remote, remote_kit
from tests.operators.kernel.test_hidden_misses import no_thread_is_left

ROWS = "user string, op string, page string, at long"
CHUNKS = 1
"""Bytes of a chunk: a few rows."""


def settings_of(hidden: bool, **changes: Any) -> StoreSettings:
    return StoreSettings(key_groups=16, chunk_bytes=CHUNKS, hide_misses=hidden, **changes)


def script(prefetch: str) -> KeyedProcess:
    """Does what the rows say to states of every kind, and tells what it saw."""

    class Script(KeyedProcess):
        n = Value("long", default=0)
        last = Value("string", ttl="40 ms", ttl_clock="event")
        sum = Reducing("long", "sum", default=0)
        pages = Map("string", "long", prefetch=prefetch)
        seen = Set("string", prefetch=prefetch)
        trail = List("string", prefetch=prefetch if prefetch in ("all", "lazy") else "lazy")
        output = "user string, saw string"
        side_outputs: ClassVar = {"aside": "user string, page string"}

        def process(self, key, rows, ctx):
            for row in rows:
                if row.op == "fail":
                    raise ValueError(row.page)
                yield key.user, repr(DO[row.op](self, row, ctx))

        def on_timer(self, key, at, ctx):
            self.n.set(self.n.get() + 100)
            if self.n.get() < 300:
                ctx.timer(at + 5)
            ctx.emit("aside", (key.user, f"timer {at}"))
            yield key.user, repr((at, self.n.get(), self.last.get(), self.trail.get(), ctx.timers()))

    return Script()


def _put(on: Any, row: Any, ctx: Any) -> None:
    on.n.set(on.n.get() + 1)
    on.last.set(row.page)
    on.pages.put(row.page, row.at)
    on.seen.add(row.page)
    on.trail.append(row.page)


DO = {
    "put": _put,
    "add": lambda on, row, ctx: on.sum.add(row.at),
    "read": lambda on, row, ctx: (on.n.get(), on.last.get(), on.sum.get(), on.pages.get(row.page), row.page in on.seen),
    "all": lambda on, row, ctx: (sorted(on.pages.items()), sorted(on.seen), on.trail.get()),
    "merge": lambda on, row, ctx: on.pages.merge(row.page, 1),
    "clear": lambda on, row, ctx: [on.n.clear(), on.pages.clear(), on.trail.clear(), on.sum.clear()],
    "timer": lambda on, row, ctx: ctx.timer(row.at + 20),
    "untimer": lambda on, row, ctx: [ctx.delete_timer(at) for at in ctx.timers()[:1]],
    "emit": lambda on, row, ctx: ctx.emit("aside", (row.user, row.page)),
}


class Vectorised(KeyedBatchProcess):
    n = Value("long", default=0)
    pages = Map("string", "long", prefetch="lazy")
    trail = List("string")
    output = "user string, n long, seen long, steps long"

    def process(self, batch, ctx):
        rows = batch.rows
        keys = batch.keys.column("user").to_pylist()
        n = [before + more for before, more in zip(batch.state("n").to_pylist(), batch.rows_per_key().tolist(), strict=True)]
        batch.set("n", n)
        seen = batch.get("pages", rows.column("page"), batch.key_of_row).to_pylist()
        batch.put("pages", rows.column("page"), rows.column("at"), batch.key_of_row)
        batch.append("trail", rows.column("page"), batch.key_of_row)
        batch.timer([at + 20 for at in rows.column("at").to_pylist()], batch.key_of_row)
        steps = batch.entries("trail").column("key_of").to_pylist()
        out = {"user": keys, "n": n, "seen": [0] * len(keys), "steps": [steps.count(number) for number in range(len(keys))]}
        for number, value in zip(batch.key_of_row.tolist(), seen, strict=True):
            out["seen"][number] += value or 0
        return _table(self, out)

    def on_timers(self, batch, due, ctx):
        numbers = due.column("key_of").to_pylist()
        users, n = batch.keys.column("user").to_pylist(), batch.state("n").to_pylist()
        times = due.column("time").to_pylist()
        return _table(self, {"user": [users[k] for k in numbers], "n": [n[k] for k in numbers], "seen": times, "steps": times})


def _table(process: KeyedBatchProcess, columns: dict[str, list[Any]]) -> Any:
    return pa.table(columns, pa.schema([("user", pa.string()), *((name, pa.int64()) for name in ("n", "seen", "steps"))]))


USERS = [f"u{number}" for number in range(12)]
OPS = [*DO, "put", "put", "timer", "timer", "emit", "emit", "fail"]
row = st.tuples(st.sampled_from(USERS), st.sampled_from(OPS), st.sampled_from("abcd"), st.integers(0, 60))
rows_of_epoch = st.lists(row, min_size=8, max_size=30)
epochs = st.lists(st.tuples(rows_of_epoch, st.sampled_from(["some", "some", "all", "none"])), min_size=4, max_size=6)
"""Rows of each epoch, and which chunks are evicted after it."""


def played(kit: ProcessKit, script: Any) -> list[Any]:
    """What each epoch gives out and leaves."""
    found = []
    for number, (rows, evict) in enumerate(script):
        given_rows = [dict(zip(("user", "op", "page", "at"), each, strict=True)) for each in rows]
        out = kit.epoch([{**each, "at": each["at"] + 30 * number} for each in given_rows], watermark_ms=30 * number)
        tables = {name: kit.state(name) for name in sorted(kit.store.snapshot().tables)}
        found.append((out, kit.sides, tables, kit.dropped))
        for _ in kit.store.compact(full=True) if evict == "some" else ():
            pass
        _evict(kit.store.open_runs, evict)
    return found


def _evict(open_runs: OpenRuns, which: str) -> None:
    if which == "all":
        open_runs.keep_only(())
    elif which == "some":
        chunks = open_runs._cache._chunks
        for key in list(chunks)[::2]:
            del chunks[key]


@pytest.mark.parametrize("prefetch", ["all", "lazy", "page", "vectorised"])
@settings(max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(script_=epochs, slots=st.integers(1, 2), small=st.booleans())
def test_a_process_function_gives_the_same(prefetch, script_, slots, small):
    changes = {"read_ahead_bytes": 1, "prefetch_bytes": 1, "concurrent_reads": 2} if small else {}
    found = []
    for hidden in (True, False):
        process = Vectorised() if prefetch == "vectorised" else script(prefetch)
        kit = remote_kit(
            process,
            Remote(),
            settings_of(hidden, **changes),
            rows=ROWS,
            keys=["user"],
            event_time="at",
            slots=slots,
            on_error="raise" if prefetch == "vectorised" else "dead_letter",
        )
        found.append(played(kit, script_))
    assert found[0] == found[1] and no_thread_is_left()


class _RemoteKit(PipelineKit):
    def _blobs(self) -> Blobs:
        if not hasattr(self, "remote"):
            self.remote = Remote()
        return self.remote


class _AllRead(OpenRuns):
    """Takes all tables for read, as a process does that has run a task that read them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.was_read = _Yes()


class _Yes(dict[str, bool]):
    def get(self, key: str, default: Any = None) -> bool:
        return True


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(rows=SOME, cuts=st.lists(st.integers(0, 39), max_size=6), how=st.sampled_from(["inner", "left", "full"]))
def test_a_join_gives_the_same(rows, cuts, how):
    rows, found = in_order(rows, 10), []
    with patch("floodplain.runtime.task_store.OpenRuns", _AllRead):
        for hidden in (True, False):
            kit = _RemoteKit(ads(how, within=("-7 ms", "10 ms")), rows=JOIN_ROWS, slots=2, settings=settings_of(hidden))
            play(kit, rows, cuts, 10)
            found.append((published(kit), kit.state("join__left"), kit.state("join__right")))
    assert found[0] == found[1] and no_thread_is_left()


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(script_=epochs)
def test_windows_give_the_same(script_):
    found = []
    with patch("floodplain.runtime.task_store.OpenRuns", _AllRead):
        for hidden in (True, False):
            kit = _RemoteKit(
                lambda stream: (
                    stream.watermark("at", "10 ms")
                    .key_by("user")
                    .window(fp.tumbling("20 ms"))
                    .agg(n=fp.count(), all=fp.collect("page"))
                    .write("memory")
                ),
                rows=ROWS,
                settings=settings_of(hidden),
            )
            out = []
            for number, (rows, _) in enumerate(script_):
                named = [dict(zip(("user", "op", "page", "at"), each, strict=True)) for each in rows]
                out.append(kit.epoch([{**each, "at": each["at"] + 30 * number} for each in named], watermark_ms=30 * number))
            found.append(out)
    assert found[0] == found[1] and no_thread_is_left()
