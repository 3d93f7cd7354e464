"""State that belongs to no key: task values through rescaling, and broadcast maps that all tasks have alike."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodplain.errors import SchemaMismatch, UserError
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Broadcast, TaskValue, Value
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, n long"
USERS = [f"u{number}" for number in range(40)]


def rows(n: int = 1, users: list[str] = USERS) -> list[dict[str, object]]:
    return [{"user": user, "n": n} for user in users]


def spread(value: int, n: int) -> list[int]:
    return [value // n + (slot < value % n) for slot in range(n)]


class Counted(KeyedProcess):
    """Counts the rows of its slot, whatever their key."""

    output = "user string, seen long"
    seen = TaskValue("long", 0, split=spread, merge=sum)
    mine = Value("long", default=0)

    def process(self, key, rows, ctx):
        for given in rows:
            self.seen.set(self.seen.get() + given.n)
            if given.n < 0:
                raise ValueError
        self.mine.set(self.mine.get() + 1)
        ctx.timer(100)
        yield key.user, self.seen.get()

    def on_timer(self, key, at, ctx):
        self.seen.set(self.seen.get() + 1000)


def seen(kit: ProcessKit) -> list[tuple[int, int, int]]:
    return sorted((row["slot"], row["slots"], row["value"]) for row in kit.state("kit__seen"))


def test_a_task_value_is_shared_by_the_keys_of_a_slot_and_lasts():
    kit = ProcessKit(Counted(), rows=ROWS, keys=["user"], has_watermark=True)
    out = kit.epoch(rows())
    assert sorted(found["seen"] for found in out) == list(range(1, 41))
    kit.epoch(rows(users=["u1"]))
    assert seen(kit) == [(0, 1, 41)]
    kit.epoch([], watermark_ms=100)
    assert seen(kit) == [(0, 1, 41 + 40 * 1000)]


def test_rescaling_merges_and_splits_and_keeps_the_sum():
    kit = ProcessKit(Counted(), rows=ROWS, keys=["user"], has_watermark=True, slots=3)
    kit.epoch(rows())
    parts = seen(kit)
    assert [row[:2] for row in parts] == [(0, 3), (1, 3), (2, 3)] and sum(row[2] for row in parts) == 40
    assert all(row[2] for row in parts)
    kit.rescale(5)
    kit.epoch([])
    assert seen(kit) == [(slot, 5, 8) for slot in range(5)]
    kit.rescale(2)
    kit.epoch(rows())
    assert [row[:2] for row in seen(kit)] == [(0, 2), (1, 2)] and sum(row[2] for row in seen(kit)) == 80
    kit.rescale(1)
    kit.epoch([])
    assert seen(kit) == [(0, 1, 80)]
    assert {row["mine"] for row in kit.state()} == {2} and len(kit.state()) == 40


def test_slots_that_set_nothing_count_as_none():
    kit = ProcessKit(Counted(), rows=ROWS, keys=["user"], has_watermark=True, slots=4)
    kit.epoch(rows(users=["u1"]))
    assert len(seen(kit)) == 1
    kit.rescale(2)
    kit.epoch([])
    assert seen(kit) == [(0, 2, 1), (1, 2, 0)]


def test_a_failed_call_leaves_the_task_value_alone():
    kit = ProcessKit(Counted(), rows=ROWS, keys=["user"], has_watermark=True, on_error="dead_letter")
    kit.epoch([*rows(users=["u1", "u2"]), {"user": "u1", "n": -7}])
    assert seen(kit) == [(0, 1, 2)] and kit.dead == 1


class Forgetful(KeyedProcess):
    output = "user string"
    last = TaskValue("string", split=lambda value, n: [value], merge=max)

    def process(self, key, rows, ctx):
        if rows[0].n == 5:
            self.last.set(5)
        elif rows[0].n == 0:
            self.last.clear()
        else:
            self.last.set(key.user)
        yield (str(self.last.exists()),)


def test_clearing_and_what_does_not_fit():
    kit = ProcessKit(Forgetful(), rows=ROWS, keys=["user"])
    assert kit.epoch(rows(1, ["a"])) == [{"user": "True"}]
    assert kit.epoch(rows(0, ["a"])) == [{"user": "False"}]
    with pytest.raises(UserError, match="task value last: 5 does not fit type string"):
        kit.epoch(rows(5, ["a"]))
    kit.epoch(rows(1, ["a"]))
    kit.rescale(3)
    with pytest.raises(UserError, match="operator kit, task value last: split returned 1 values for 3 slots"):
        kit.epoch([])


RULES = "user string, most long"


class Ruled(KeyedProcess):
    output = "user string, most long, rules long"
    rules = Broadcast("string", "long")
    orders: list[list[str]] = []  # noqa: RUF012 — what on_broadcast saw, over all tasks

    def process(self, key, rows, ctx):
        if rows[0].n == 99:
            self.rules.put("u1", 1)
        yield key.user, self.rules.get(key.user, -1), len(self.rules)

    def on_broadcast(self, rows, ctx):
        self.orders.append([row.user for row in rows])
        for row in rows:
            if row.user == "*":
                self.rules.clear()
            elif row.user == "!":
                raise ValueError("no such rule")
            elif row.most is None:
                self.rules.remove(row.user)
            else:
                self.rules.put(row.user, row.most)


def rule(user: str, most: int | None = None) -> dict[str, object]:
    return {"user": user, "most": most}


def test_all_tasks_see_the_same_map_and_it_lasts():
    Ruled.orders.clear()
    kit = ProcessKit(Ruled(), rows=ROWS, keys=["user"], slots=4, broadcast=RULES)
    out = kit.epoch(rows(), broadcast=[rule("u3", 30), rule("u1", 10)])
    assert len(out) == 40 and {found["rules"] for found in out} == {2}
    assert {found["user"]: found["most"] for found in out if found["most"] != -1} == {"u1": 10, "u3": 30}
    assert Ruled.orders == [["u1", "u3"]] * 4
    kit.epoch([], broadcast=[rule("u2", 20), rule("u3")])
    assert {(found["key"], found["value"]) for found in kit.state("kit__rules")} == {("u1", 10), ("u2", 20)}
    kit.rescale(2)
    assert {found["rules"] for found in kit.epoch(rows())} == {2}
    kit.epoch([], broadcast=[rule("*"), rule("u9", 90)])
    assert kit.state("kit__rules") == [{"key": "u9", "value": 90}]


def test_a_broadcast_map_is_read_only_where_keys_are_processed():
    kit = ProcessKit(Ruled(), rows=ROWS, keys=["user"], broadcast=RULES)
    with pytest.raises(UserError, match="broadcast state rules can be changed only in on_broadcast"):
        kit.epoch(rows(99, ["u1"]))


def test_an_error_in_on_broadcast_names_the_row():
    kit = ProcessKit(Ruled(), rows=ROWS, keys=["user"], name="ruled", broadcast=RULES)
    message = "ValueError in operator ruled (on_broadcast), epoch 1, row Row(user='!', most=3): no such rule"
    with pytest.raises(UserError, match=re.escape(message)):
        kit.epoch([], broadcast=[rule("a", 1), rule("!", 3), rule("!!", 1)])
    with pytest.raises(UserError, match=r"operator ruled.*state rules"):
        ProcessKit(Typo(), rows=ROWS, keys=["user"], name="ruled", broadcast=RULES).epoch([], broadcast=[rule("a", 1)])


class Typo(Ruled):
    def on_broadcast(self, rows, ctx):
        self.rules.put("a", "many")


class InOrder(Ruled):
    broadcast_order_by = ("most",)


def test_broadcast_rows_come_in_the_declared_order():
    Ruled.orders.clear()
    kit = ProcessKit(InOrder(), rows=ROWS, keys=["user"], broadcast=RULES)
    kit.epoch([], broadcast=[rule("a", 2), rule("b", 1), rule("c", 3)])
    assert Ruled.orders == [["b", "a", "c"]]


class Vector(KeyedBatchProcess):
    output = "user string, most long"
    rules = Broadcast("string", "long")
    calls = TaskValue("long", 0, split=spread, merge=sum)

    def process(self, batch, ctx):
        self.calls.set(self.calls.get() + 1)
        rules = self.rules.table()
        at = pc.index_in(batch.keys.column("user"), rules.column("key"))
        return batch.keys.append_column("most", pc.take(rules.column("value"), at))

    def on_broadcast(self, rows, ctx):
        for given in rows.to_pylist():
            self.rules.put(given["user"], given["most"])


def test_a_batch_process_reads_it_as_a_table():
    kit = ProcessKit(Vector(), rows=ROWS, keys=["user"], broadcast=RULES)
    out = kit.epoch(rows(1, ["u1", "u2"]), broadcast=[rule("u2", 20)])
    assert {found["user"]: found["most"] for found in out} == {"u1": None, "u2": 20}
    kit.epoch(rows(1, ["u1"]))
    assert kit.state("kit__calls") == [{"slot": 0, "slots": 1, "value": 2}]


def test_declarations_are_checked():
    with pytest.raises(SchemaMismatch, match="default"):
        TaskValue("long", "many", split=spread, merge=sum)
    with pytest.raises(SchemaMismatch):
        Broadcast("map<string,long>", "long")
    assert Broadcast("string", "long").arrow_key == pa.string()
