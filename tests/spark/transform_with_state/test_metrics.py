"""What is counted in tasks and of the state, on generated calls; no Spark runs."""

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StringType, StructType

from floodplain.spark.transform_with_state.metrics import CUSTOM, REMOVED, UPDATED
from floodplain.spark.transform_with_state.process import Shape, StatefulProcess, declared_by
from floodplain.spark.transform_with_state.state_count import count_expired, count_rows
from floodplain.testing.pipeline_kit import PipelineKit
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
    """What the calls come to, by the rules of Spark: (key, state) → entries with the time at which they end."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], dict[Any, float]] = {}
        self.written: dict[tuple[str, str, Any], tuple[str, float]] = {}
        """What was written last to an entry, and the time at which that ends."""
        self.counts: Counter[str] = Counter()

    def call(self, user: str, what: str, name: str, n: int, now_ms: int, text: str) -> None:
        entries = self.states.setdefault((user, name), {})
        timed = name.endswith("_ttl")
        end_ms = now_ms + TTL_MS if timed else float("inf")
        match what:
            case "put" | "set":
                entry = (user, name, n if what == "put" else 0)
                there = entry[2] in entries and self.written[entry] == (text, end_ms)
                self.counts[UPDATED] += not (timed and there)
                entries[entry[2]], self.written[entry] = end_ms, (text, end_ms)
            case "append":
                entries |= {object(): end_ms for _ in range(n)}
                self.counts[UPDATED] += n
            case "remove":
                entries.pop(n, None)
                self.counts[REMOVED] += 1
            case "clear":
                self.counts[REMOVED] += 1 if name == "value" else len(entries)
                entries.clear()

    def expire(self, now_ms: int) -> list[tuple[tuple[str, str], Any]]:
        ended = [(key, entry) for key, entries in self.states.items() for entry, end in entries.items() if end <= now_ms]
        for key, entry in ended:
            del self.states[key][entry]
        return ended

    def rows(self) -> int:
        return sum(bool(held) if name.startswith("list") else len(held) for (_, name), held in self.states.items())


CALLS = {
    "value": [("set", "update(({n},))"), ("set", "update((None,))"), ("clear", "clear()"), ("get", "get()")],
    "list": [
        ("append", "appendList([({n},)] * {n})"),
        ("append", "appendValue((1,))"),
        ("clear", "clear()"),
        ("get", "exists()"),
    ],
    "map": [("put", "updateValue(({n},), (1,))"), ("remove", "removeKey(({n},))"), ("clear", "clear()"), ("get", "exists()")],
}


def kit_of(mode: str, slots: int) -> tuple[PipelineKit, StatefulProcess]:
    declared, _ = declared_by(Called(), mode, lambda text: pytest.fail(f"{text} needs Spark"))
    process = StatefulProcess(Called(), Shape(ROWS, ("user",), OUTPUT), mode, declared, {}, pandas=False)
    rows = "user string, call string"
    return PipelineKit(lambda s: s.key_by("user").process(process, name="it").write("memory"), rows=rows, slots=slots), process


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_counts_on_generated_calls(seed, slots):
    chance, model, now_ms = random.Random(seed), Model(), 0
    kit, _ = kit_of("processingtime", slots)
    for _ in range(8):
        now_ms += chance.choice([10, 40, 150])
        expired = model.expire(now_ms)
        model.counts.clear()
        rows = []
        for _ in range(chance.randrange(12)):
            user, kind = chance.choice("abc"), chance.choice(KINDS)
            name, (what, call) = kind + chance.choice(["", "_ttl"]), chance.choice(CALLS[kind])
            n = 1 if "appendValue" in call else chance.randrange(1, 4)
            rows.append({"user": user, "call": f"{name}.{call.format(n=n)}"})
            model.call(user, what, name, n, now_ms, rows[-1]["call"])
        kit.epoch(rows, now_ms=now_ms)
        done = kit.progress[-1]
        operator = done.operators["it"]
        assert {name: operator.measures[name] for name in (UPDATED, REMOVED)} == {
            name: model.counts[name] for name in (UPDATED, REMOVED)
        }
        bound, store = kit._epochs.bound.operators["it"], kit._epochs.store
        assert count_rows(store.at(done.epoch), bound, now_ms) == model.rows() and done.processing_ms == now_ms
        assert (operator.state_bytes > 0) == (operator.state_rows > 0)
        if done.epoch > 1:
            before, after = kit.progress[-2], store.at(done.epoch)
            times_ms = before.processing_ms, now_ms
            wanted = [key for key, entry in expired if entry not in model.states[key]]
            assert count_expired(store.at(before.epoch), after, bound, times_ms) == len(wanted)


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
    assert set(first) <= {*CUSTOM, UPDATED, REMOVED}
