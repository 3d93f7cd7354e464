"""What is counted in tasks and of the state, on generated calls; no Spark runs."""

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StringType, StructType

from floodplain.spark.transform_with_state.metrics import CUSTOM, NOT_EVICTED, REMOVED, UPDATED
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.spark.transform_with_state.state_count import count_expired, count_rows
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.versions.records.schema import PROCESSING_TIME
from tests.spark.transform_with_state.programs import LONG

ROWS = StructType().add("user", StringType()).add("call", StringType())
OUTPUT = StructType().add("user", StringType())
TTL_MS = 100
KINDS = ("value", "list", "map")


class Called(StatefulProcessor):
    """Makes the calls that its rows name."""

    def init(self, handle):
        gone = handle.getListState("gone", LONG)
        handle.deleteIfExists("gone")
        handle.deleteIfExists("never there")
        self.scope = {"handle": handle, "gone": gone}
        for ttl in ("", "_ttl"):
            ttl_ms = TTL_MS if ttl else None
            self.scope |= {
                f"value{ttl}": handle.getValueState(f"value{ttl}", LONG, ttl_ms),
                f"list{ttl}": handle.getListState(f"list{ttl}", LONG, ttl_ms),
                f"map{ttl}": handle.getMapState(f"map{ttl}", LONG, LONG, ttl_ms),
            }

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            eval(row.call, dict(self.scope))
        yield Row(user=key[0])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(user=f"{key[0]} fired")

    def close(self):
        pass


class Model:
    """What the calls come to, by the rules of Spark, whose store has (key, state) → entries: what was written, when that ends.

    An entry that has ended stays until the end of the epoch. A call may find it there.
    """

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], dict[Any, tuple[str, float]]] = {}
        self.counts: Counter[str] = Counter()

    def call(self, user: str, what: str, name: str, n: int, now_ms: int, text: str) -> None:
        entries = self.states.setdefault((user, name), {})
        timed = name.endswith("_ttl")
        written = text, now_ms + TTL_MS if timed else float("inf")
        match what:
            case "put" | "set":
                entry = n if what == "put" else 0
                self.counts[UPDATED] += not (timed and entries.get(entry) == written)
                entries[entry] = written
            case "append" | "replace":
                if what == "replace":
                    entries.clear()
                entries |= {object(): written for _ in range(n)}
                self.counts[UPDATED] += n
            case "remove":
                entries.pop(n, None)
                self.counts[REMOVED] += 1
            case "clear":
                self.counts[REMOVED] += len(entries) if timed or name != "value" else 1
                entries.clear()

    def evict(self, now_ms: int) -> int:
        ended = [(key, entry) for key, entries in self.states.items() for entry, (_, end) in entries.items() if end <= now_ms]
        for key, entry in ended:
            del self.states[key][entry]
        return len(ended)

    def rows(self) -> int:
        return sum(bool(held) if name.startswith("list") else len(held) for (_, name), held in self.states.items())


CALLS = {
    "value": [("set", "update(({n},))"), ("set", "update((None,))"), ("clear", "clear()"), ("get", "get()")],
    "list": [
        ("append", "appendList([({n},)] * {n})"),
        ("append", "appendValue((1,))"),
        ("replace", "put([({n},)] * {n})"),
        ("clear", "clear()"),
        ("get", "exists()"),
    ],
    "map": [("put", "updateValue(({n},), (1,))"), ("clear", "clear()"), ("get", "exists()"), ("remove", "removeKey(({n},))")],
}


def kit_of(mode: str, slots: int) -> tuple[PipelineKit, StatefulProcess]:
    declared, _ = declared_by(Called(), mode, lambda text: pytest.fail(f"{text} needs Spark"))
    process = StatefulProcess(Called(), Shape(ROWS, ("user",), OUTPUT), mode, declared, {}, pandas=False)
    rows = "user string, call string"
    return PipelineKit(lambda s: s.key_by("user").process(process, name="it").write("memory"), rows=rows, slots=slots), process


def generated_call(chance):
    kind, ttl = chance.choice(KINDS), chance.choice(["", "_ttl"])
    what, call = chance.choice(CALLS[kind][:-1] if ttl else CALLS[kind])
    n = 1 if "appendValue" in call else chance.randrange(1, 4)
    return kind + ttl, what, n, f"{kind}{ttl}.{call.format(n=n)}"


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_counts_on_generated_calls(seed, slots):
    chance, model, now_ms = random.Random(seed), Model(), 0
    kit, _ = kit_of("processingtime", slots)
    for _ in range(8):
        now_ms += chance.choice([10, 40, 150])
        model.counts.clear()
        rows = []
        for _ in range(chance.randrange(18)):
            user, (name, what, n, call) = chance.choice("abc"), generated_call(chance)
            rows.append({"user": user, "call": call})
            model.call(user, what, name, n, now_ms, call)
        evicted = model.evict(now_ms)
        kit.epoch(rows, now_ms=now_ms)
        assert counted(kit, now_ms) == (model.counts[UPDATED], model.counts[REMOVED], evicted, model.rows())
        operator = kit.progress[-1].operators["it"]
        assert (operator.state_bytes > 0) == (operator.state_rows > 0)


def counted(kit, now_ms):
    """Rows updated, removed, evicted, and left."""
    done, store = kit.progress[-1], kit._epochs.store
    measures, bound, after = done.operators["it"].measures, kit._epochs.bound.operators["it"], store.at(done.epoch)
    assert done.processing_ms == now_ms
    expired = 0
    if done.epoch > 1:
        before = store.at(done.epoch - 1)
        expired = count_expired(before, after, bound, (before.manifest.watermarks[PROCESSING_TIME], now_ms))
    return measures[UPDATED], measures[REMOVED], expired - measures[NOT_EVICTED], count_rows(after, bound, now_ms)


def test_an_entry_that_has_expired_and_is_removed_by_its_key_counts_twice():
    kit, _ = kit_of("processingtime", 1)
    for now_ms, call, wanted in [
        (0, "map_ttl.updateValue((1,), (1,))", (1, 0, 0, 1)),
        (TTL_MS, "map_ttl.removeKey((1,))", (0, 1, 1, 0)),
    ]:
        kit.epoch([{"user": "a", "call": call}], now_ms=now_ms)
        assert counted(kit, now_ms) == wanted


def test_variables_and_timers_are_counted_in_each_task():
    kit, _ = kit_of("processingtime", 2)
    calls = ["handle.registerTimer(50)", "handle.registerTimer(50)", "handle.registerTimer(900)", "handle.deleteTimer(900)"]
    kit.epoch([{"user": "a", "call": call} for call in calls], now_ms=10)
    first = kit.progress[-1].operators["it"].measures
    kit.tick(now_ms=60)
    second = kit.progress[-1]
    assert not second.has_input and kit.progress[-2].has_input
    variables = {
        **{f"num{kind.capitalize()}StateVars": 2 for kind in KINDS},
        **{f"num{kind.capitalize()}StateWithTTLVars": 2 for kind in KINDS},
        "numListStateVars": 4,
        "numDeletedStateVars": 2,
    }
    timers = {"numRegisteredTimers": 3, "numDeletedTimers": 1, "numExpiredTimers": 0}
    assert {name: first.get(name, 0) for name in (*variables, *timers)} == {**variables, **timers}
    timers = {"numRegisteredTimers": 0, "numDeletedTimers": 1, "numExpiredTimers": 1}
    assert {name: second.operators["it"].measures.get(name, 0) for name in (*variables, *timers)} == {**variables, **timers}
    assert set(first) <= {*CUSTOM, UPDATED, REMOVED, NOT_EVICTED}
