"""Control operations: each slot is looked at once, one decision is in the log with all that follows, through every crash."""

import datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

import floodplain as fp
from floodplain.cli import render
from floodplain.cli.inspection import inspect_store
from floodplain.errors import BadInput, Conflict, Fenced, Unavailable, UserError
from floodplain.runtime.engine import MOST_TRIES, TryFailed
from floodplain.store.store import Store
from floodplain.testing.faults import Crashed, CrashPoint
from floodplain.testing.local_engine import LocalEngine
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit
from floodplain.versions.records.control import LOGGED_BYTES, REMEMBERED

ROWS = "user string, amount long"
USERS = [f"u{number}" for number in range(40)]
FIRST = [{"user": user, "amount": number} for number, user in enumerate(USERS)]


class Spent(fp.KeyedProcess):
    total = fp.Value("long", default=0)
    seen = fp.List("long")
    output = "user string, total long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.total.set(self.total.get() + row.amount)
            self.seen.append(row.amount)
        yield key.user, self.total.get()


class Twice(Spent):
    def process(self, key, rows, ctx):
        for user, total in super().process(key, rows, ctx):
            yield user, 2 * total


def build(stream):
    return stream.key_by("user").process(Spent(), name="spent").write("memory")


def doubled(stream):
    return stream.key_by("user").process(Twice(), name="spent").write("memory")


class Look(fp.ControlOperation):
    """What each slot sees; ``then`` decides."""

    operator = "spent"

    def __init__(self, then=None, table=None):
        self.then, self.table = then, table

    def on_slot(self, state, ctx):
        rows = state.to_arrow(self.table).to_pylist()
        pieces = [row for piece in state.scan(self.table) for row in piece.to_pylist()]
        assert rows == pieces
        return [[[ctx.slot, ctx.slots, ctx.epoch], sorted([row["user"], row.get("total", row.get("value"))] for row in rows)]]

    def merge(self, a, b):
        return [*a, *b]

    def decide(self, result, control):
        return result if self.then is None else self.then(result, control)


def begun(slots=3, **more) -> PipelineKit:
    kit = PipelineKit(build, rows=ROWS, slots=slots, **more)
    kit.epoch(FIRST)
    return kit


@pytest.mark.parametrize("slots", [1, 3, 16])
@pytest.mark.parametrize("table", [None, "spent", "seen"])
def test_each_slot_is_looked_at_once_and_together_they_see_all_keys(slots, table):
    kit = begun(slots)
    seen = kit.control(Look(table=table))
    assert [where for where, _ in seen] == [[slot, slots, 1] for slot in range(slots)]
    assert sorted(row for _, rows in seen for row in rows) == sorted([user, number] for number, user in enumerate(USERS))
    assert sum(bool(rows) for _, rows in seen) > slots // 2
    assert kit.epoch([{"user": "u0", "amount": 1}])["output"] == [{"user": "u0", "total": 1}]


def test_the_state_is_that_of_the_last_epoch_and_of_one_operator():
    def two(stream):
        spent = stream.key_by("user").process(Spent(), name="spent")
        return spent.write("memory").also(spent.key_by("total").agg(n=fp.count(), name="spent_more").write("memory", name="n"))

    class Tables(Look):
        def on_slot(self, state, ctx):
            return [list(state.tables)]

    kit = PipelineKit(two, rows=ROWS)
    kit.epoch(FIRST)
    assert kit.control(Tables())[0] == ["spent", "event_timers", "processing_timers", "seen"]
    with pytest.raises(BadInput, match="operator spent has no table 'spent_more'; it has: "):
        kit.control(Look(table="spent_more"))


def test_a_tag_a_rescale_and_an_update_follow():
    kit = begun()
    assert kit.control(Look(lambda result, control: fp.Tag("seen"))) == fp.Tag("seen")
    assert kit.store.head.tags == {"seen": 1}
    assert kit.control(Look(lambda result, control: fp.Rescale(control.slots + 2))) == fp.Rescale(5)
    assert len(kit.control(Look())) == 5
    kit.epoch([{"user": "u0", "amount": 1}])
    assert kit.progress[-1].slots == kit.store.head.assignment.slots == 5
    switch = fp.Update(doubled, tag="single", evolve={})
    assert kit.control(Look(lambda result, control: switch)) is switch
    assert kit.store.head.tags == {"seen": 1, "single": 2}
    assert kit.epoch([{"user": "u0", "amount": 1}])["output"] == [{"user": "u0", "total": 4}]
    assert [record.note.kind for record in kit.store.head.controls] == ["tag", "rescale", "value", "update"]
    assert [record.epoch for record in kit.store.head.controls] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (lambda result, control: fp.Tag("Not a name"), "tag name 'Not a name' is not allowed"),
        (lambda result, control: fp.Rescale(0), "slots"),
        (lambda result, control: fp.Rescale(17), "slots"),
        (lambda result, control: fp.Update(lambda s: s.key_by("user").agg(n=fp.count()).write("memory")), "has operator 'spent'"),
        (
            lambda result, control: fp.Update(lambda s: s.key_by("user").agg(n=fp.count()).write("console")),
            "was memory, is console",
        ),
        (lambda result, control: object(), "no plain data"),
        (lambda result, control: 1 / 0, "ZeroDivisionError in decide of control operation look"),
    ],
)
def test_a_decision_that_is_not_possible_leaves_nothing(then, words):
    kit = begun()
    head = kit.store.head
    with pytest.raises((BadInput, UserError), match=words):
        kit.control(Look(then))
    after = kit.store.history.refresh()
    assert (after.controls, after.tags, after.epoch, after.assignment) == ((), {}, head.epoch, head.assignment)
    assert kit.epoch([{"user": "u0", "amount": 1}])["output"] == [{"user": "u0", "total": 1}]
    assert kit.progress[-1].slots == 3


class Failing(Look):
    def __init__(self, where):
        super().__init__()
        self.where = where

    def on_slot(self, state, ctx):
        if self.where == "on_slot" and ctx.slot == 1:
            raise ValueError("not here")
        return {"large": "x" * (5 << 20), "module": datetime}.get(self.where, [])

    def merge(self, a, b):
        raise ValueError("nor here")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("on_slot", r"ValueError in on_slot of control operation failing, slot 1, epoch 1: not here"),
        ("large", "returned 5242882 bytes for slot 0"),
        ("module", "no plain data"),
        ("merge", "ValueError in merge of control operation failing: nor here"),
    ],
)
def test_errors_of_users_end_the_operation_and_not_the_pipeline(where, words):
    kit = begun()
    with pytest.raises(UserError, match=words):
        kit.control(Failing(where))
    kit.restart()
    assert kit.store.head.controls == ()
    assert kit.epoch([{"user": "u0", "amount": 1}])["output"] == [{"user": "u0", "total": 1}]


def test_what_is_no_operation_or_has_no_operator_is_refused():
    kit = begun()
    with pytest.raises(BadInput, match=r"subclass fp\.ControlOperation"):
        kit.control(Look)

    class Lost(Look):
        operator = "nonesuch"

    with pytest.raises(BadInput, match="no operator 'nonesuch'; it has: spent"):
        kit.control(Lost())
    with pytest.raises(BadInput, match="control run name"):
        kit.control(Look(), run="No Name")


def test_a_run_that_is_in_the_log_is_not_repeated():
    kit = begun()
    count = {"n": 0}

    def then(result, control):
        count["n"] += 1
        return {"at": control.epoch}

    for _ in range(2):
        assert kit.control(Look(then), run="monday") == {"at": 1}
        kit.restart()
        kit.epoch(FIRST)
    assert count == {"n": 1}
    assert kit.control(Look(lambda result, control: fp.Rescale(4)), run="more") == fp.Rescale(4)
    assert kit.control(Look(), run="more") == fp.Rescale(4)
    assert kit.control(Look(lambda result, control: "x" * LOGGED_BYTES), run="large")
    with pytest.raises(BadInput, match=f"only the digest of its {LOGGED_BYTES + 2} bytes"):
        kit.control(Look(), run="large")
    (note,) = [record.note for record in kit.store.head.controls if record.note.run == "large"]
    assert (note.decision.size_bytes, note.decision.json, len(note.decision.digest)) == (LOGGED_BYTES + 2, "", 32)
    for number in range(REMEMBERED):
        kit.control(Look(lambda result, control: None), run=f"later_{number}")
    assert [record.note.run for record in kit.store.head.controls] == [f"later_{number}" for number in range(REMEMBERED)]


def test_another_driver_and_an_operation_of_long_ago_are_told_apart():
    kit = begun()
    kit.steps.reset()
    kit.crash_at(CrashPoint(0, "before"), lambda: kit.store.writer("rival", force=True))
    with pytest.raises(Fenced):
        kit.control(Look(lambda result, control: fp.Tag("mine")))
    assert kit.store.history.refresh().controls == ()
    assert kit.store.history.refresh().tags == {}


def test_tasks_that_are_lost_are_tried_again(monkeypatch):
    kit, looks = begun(), []
    inner = LocalEngine.look

    def lossy(engine: Any, job: Any) -> Any:
        looks.append(job)
        if len(looks) < lost:
            raise TryFailed(Unavailable("a worker is lost"))
        return inner(engine, job)

    monkeypatch.setattr(LocalEngine, "look", lossy)
    lost = MOST_TRIES
    assert len(kit.control(Look())) == 3
    assert len(looks) == MOST_TRIES
    lost = 2 * MOST_TRIES + 1
    with pytest.raises(Unavailable, match="a worker is lost"):
        kit.control(Look())
    assert len(looks) == 2 * MOST_TRIES
    assert len(kit.store.head.controls) == 1


DECISIONS = {
    "value": lambda result, control: sum(total for _, rows in result for _, total in rows),
    "tag": lambda result, control: fp.Tag("seen"),
    "rescale": lambda result, control: fp.Rescale(5),
    "update": lambda result, control: fp.Update(doubled, tag="single"),
}


def effects(kit: PipelineKit) -> dict[str, Any]:
    head = kit.store.history.refresh()
    return {"tags": head.tags, "slots": head.assignment.slots, "changes": [change.what for change in head.changes]}


@pytest.mark.parametrize("kind", DECISIONS)
def test_through_every_crash_exactly_one_decision_is_in_the_log_with_what_follows(kind):
    """Before the edit there is neither a decision nor what follows from it, after it there are both; then it is repeated."""
    script = [KitEpoch(FIRST), KitEpoch(control=Look(DECISIONS[kind])), KitEpoch(FIRST)]
    kit = PipelineKit(build, rows=ROWS, slots=3)
    kit.wipe()
    kit.restart()
    parts = kit.play(script)
    expected, records = kit.outcome(), kit.store.head.controls
    seen = set()
    for point in [CrashPoint(step, when) for step in parts[1] for when in ("before", "after")]:
        kit.wipe()
        kit.restart()
        kit.crash_at(point)
        kit.play(script[:1])
        before = effects(kit)
        with pytest.raises(Crashed):
            kit.control(Look(DECISIONS[kind]))
        decided = len(kit.store.history.refresh().controls)
        seen.add(decided)
        assert (effects(kit) == before) == (not decided or kind == "value")
        kit.until_done(kit.restart)
        kit.play(script[2:])
        assert kit.outcome() == expected, point
        assert [record.note for record in kit.store.history.refresh().controls] == [record.note for record in records], point
    assert seen == {0, 1}


def test_a_state_with_decisions_is_read_by_another_process(tmp_path):
    class InFolder(PipelineKit):
        def _blobs(self):
            return Store.open(tmp_path, create=True, settings=self._settings).history.blobs

    kit = InFolder(build, rows=ROWS, slots=2)
    kit.epoch(FIRST)
    kit.control(Look(DECISIONS["value"]), run="sum")
    kit.stop()
    store = Store.open(tmp_path)
    (record,) = store.head.controls
    assert (record.note.run, record.note.decision.json) == ("sum", str(sum(range(40))))
    console = Console(file=StringIO(), width=200)
    render.inspection(console, inspect_store(str(tmp_path), store))
    assert "Control operations" in console.file.getvalue()
    assert "value 780" in console.file.getvalue()


def test_an_operation_of_a_manifest_that_moved_is_refused():
    """Another writer commits while the operation decides: what it has looked at is not the newest state any more."""
    kit = begun()

    def meanwhile(result, control):
        kit._epochs.advance(1, 0)
        return "late"

    with pytest.raises(Conflict):
        kit.control(Look(meanwhile))
