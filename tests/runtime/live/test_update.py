"""A pipeline is replaced while it runs: as a stop and a start would do it, by one edit, through every crash."""

import re
from typing import Any

import pytest

import floodplain as fp
from floodplain.errors import BadInput, Fenced, FloodplainError
from floodplain.runtime.live.update import NOTE
from floodplain.sinks.memory import MemorySink
from floodplain.testing.faults import Crashed, CrashPoint
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from floodplain.tiers import paths
from tests.runtime.compatibility.test_changed_jobs import (
    BEFORE,
    ROWS,
    More,
    Number,
    Renamed,
    Text,
    Totals,
    Was,
    at,
    keyed,
    process,
    row,
    running,
    windows,
)


def chain(second: Any, name: str = "late") -> Any:
    """Two operators, the one downstream of the other."""

    def build(stream):
        totals = stream.watermark("ts", "0 seconds").key_by("user").process(Totals(), name="totals")
        return second(totals.key_by("user"), name).write("memory")

    return build


LATER = [row(8, v=4), row(8.5, "b", v=9), row(9, v=1)]
COUNTED = chain(lambda rows, name: rows.agg(n=fp.count(), name=name))
ACCEPTED = {
    "code": (process(Totals()), process(More()), {}),
    "rename in the code": (process(Totals()), process(Was()), {}),
    "rename": (process(Totals()), process(Renamed()), {"rename": {"total": "totals", "seen": "trail"}}),
    "rename an operator": (process(Totals()), process(Totals(), "sums"), {"rename": {"totals": "sums"}}),
    "reset": (
        windows(fp.tumbling("5 minutes")),
        windows(fp.tumbling("1 minute")),
        {"reset": ["windows"]},
    ),
    "evolve": (process(Number()), process(Text()), {"evolve": {"total": lambda total: f"<{total}>"}}),
    "an aggregate more": (running(n=fp.count()), running(n=fp.count(), total=fp.sum("v", since="now")), {}),
    "an aggregate less": (running(n=fp.count(), mean=fp.avg("v")), running(n=fp.count()), {"drop": ["aggregate.mean"]}),
    "another operator": (running(n=fp.count()), keyed(lambda rows: rows.last("v")), {"drop": ["aggregate"]}),
    "an operator more": (process(Totals()), COUNTED, {}),
    "an operator less": (COUNTED, process(Totals()), {"drop": ["late"]}),
    "other keys downstream": (
        COUNTED,
        chain(lambda rows, name: rows.where("total > 3").agg(most=fp.max("total"), name=name), "most"),
        {"drop": ["late"]},
    ),
    "more lateness": (windows(fp.tumbling("5 minutes")), windows(fp.tumbling("5 minutes"), lateness="3 minutes"), {}),
    "stateless steps": (process(Totals()), keyed(lambda rows: rows.process(Totals(), name="totals").where("total > 6")), {}),
    "nothing": (process(Totals()), process(Totals()), {}),
}
REFUSED = {
    "windows": (windows(fp.tumbling("5 minutes")), windows(fp.session("5 minutes")), {}),
    "an aggregate": (running(x=fp.sum("v")), running(x=fp.sum("w")), {}),
    "a new aggregate": (running(n=fp.count()), running(n=fp.count(), total=fp.sum("v")), {}),
    "a lost state": (process(Totals()), process(Renamed()), {}),
    "a lost operator": (process(Totals()), running(n=fp.count()), {}),
    "a type": (process(Number()), process(Text()), {}),
    "a failing evolve": (process(Number()), process(Text()), {"evolve": {"total": lambda total: 1 / 0}}),
    "a name": (process(Totals()), process(Totals()), {"drop": ["nonesuch"]}),
    "a column": (process(Totals()), keyed(lambda rows: rows.agg(x=fp.sum("nonesuch"), name="totals")), {}),
}


def begun(build: Any) -> PipelineKit:
    kit = PipelineKit(build, rows=ROWS)
    kit.epoch([*BEFORE, row(3, "b", v=7)], watermark_ms=at(3))
    return kit


def gone_on(kit: PipelineKit) -> list[Any]:
    """What comes then, and what there is. Positions in a list have the numbers of epochs, and an update is one."""
    later = [kit.epoch(LATER, watermark_ms=at(6)), kit.tick(now_ms=0, watermark_ms=at(60))]
    outcome = {name: sorted(re.sub("'position': [0-9]+", "", each) for each in rows) for name, rows in kit.outcome().items()}
    return [*later, *outcome.items()]


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_gives_what_a_stop_and_a_start_give(name):
    before, after, changes = ACCEPTED[name]
    restarted, updated = begun(before), begun(before)
    restarted.stop()
    restarted.restart(after, **changes)
    epoch = updated.update(after, **changes)
    assert epoch == updated.store.head.epoch == updated.store.head.published == 2
    assert gone_on(updated) == gone_on(restarted)
    told = [[change.what for change in kit.store.head.changes] for kit in (updated, restarted)]
    assert told[0] == [*told[1], NOTE]
    assert updated.store.head.definitions == restarted.store.head.definitions
    assert updated.explain() == restarted.explain()


def test_staged_output_of_the_pipeline_that_goes_is_deleted():
    kit = begun(process(Totals()))
    assert kit.store.head.outputs
    kit.update(process(More()))
    assert [info.name for info in kit.store.history.blobs.list(paths.STAGED)] == []


def kept(kit: PipelineKit) -> dict[str, Any]:
    """All of the manifest but how far publishing got, and what every edit moves."""
    head = kit.store.history.refresh()
    moves = {"lease", "position", "chain", "at_ms", "nonces", "ages", "published"}
    return {name: getattr(head, name) for name in head.__struct_fields__ if name not in moves}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_start_refuses_is_refused_in_the_same_words_and_the_running_one_goes_on(name):
    before, after, changes = REFUSED[name]
    restarted, updated, untouched = begun(before), begun(before), begun(before)
    restarted.stop()
    with pytest.raises(FloodplainError) as told:
        restarted.restart(after, **changes)
    head = kept(updated)
    with pytest.raises(type(told.value)) as error:
        updated.update(after, tag="before", **changes)
    assert str(error.value) == str(told.value)
    assert kept(updated) == head
    assert gone_on(updated) == gone_on(untouched)
    updated.restart()


def two(stream):
    rows = stream.key_by("user").process(Totals(), name="totals")
    return rows.write("memory").also(rows.where("total > 5").write("memory", name="more"))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (lambda s: s.watermark("ts", "1 second").key_by("user").process(Totals()).write("memory"), "the watermark is another"),
        (lambda s: s.key_by("user").process(Totals()).write("memory"), "the watermark is another"),
        (process(Totals(), "x"), "operator 'totals', which this pipeline does not have"),
        (keyed(lambda rows: rows.process(Totals())).__call__, None),
        (lambda s: keyed(lambda rows: rows.process(Totals()))(s).stream.write("console"), "sink output was memory, is console"),
        (
            lambda s: keyed(lambda rows: rows.process(Totals()))(s).stream.write("memory", name="o"),
            "are output, those of the new",
        ),
        (lambda s: keyed(lambda rows: rows.process(Totals()))(s).stream.to(MemorySink()), "is another object"),
    ],
)
def test_what_cannot_change_live_is_named(after, words):
    kit = begun(process(Totals()))
    if words is None:
        assert kit.update(after) == 2
        return
    with pytest.raises(BadInput, match=words):
        kit.update(after)
    assert kit.store.head.epoch == 1
    assert kit.epoch(LATER)["output"]


def test_broadcast_inputs_and_options_of_sinks_cannot_change_live(tmp_path):
    def console(rows):
        return lambda stream: stream.key_by("user").process(Totals()).write("console", rows=rows)

    kit = PipelineKit(console(3), rows=ROWS)
    with pytest.raises(BadInput, match="sink output has another rows"):
        kit.update(console(4))
    assert kit.update(console(3)) == 1

    def with_prices(stream, prices):
        return stream.key_by("user").process(Totals(), broadcast=prices).write("memory")

    kit = PipelineKit(with_prices, rows=ROWS, broadcasts={"prices": "item string"})
    with pytest.raises(BadInput, match="reads broadcast input of operator totals, and the new one does not"):
        kit.update(lambda stream, prices: stream.key_by("user").process(Totals()).write("memory"))


def test_the_epoch_before_is_kept_under_a_tag():
    kit = begun(process(Number()))
    kit.update(process(Text()), tag="numbers", evolve={"total": str})
    kit.epoch(LATER)
    assert kit.store.head.tags == {"numbers": 1}
    assert kit.store.at(tag="numbers").table("totals").to_arrow().column("total").to_pylist() == [6, 7]
    with pytest.raises(BadInput, match="tag 'numbers' names epoch 1 already"):
        kit.update(process(Text()), tag="numbers")
    with pytest.raises(BadInput, match="no epoch is committed yet"):
        PipelineKit(process(Number()), rows=ROWS).update(process(Number()), tag="first")
    kit.rollback(1, process(Number()))
    assert kit.epoch([row(8, v=1)])["output"] == [{"user": "a", "total": 7}]


class Opening(fp.KeyedProcess):
    """What it is opened with comes out."""

    output = "user string, by string"
    events: list[str] = []  # noqa: RUF012 — of all processes

    def __init__(self, name):
        self.name = name

    def open(self, ctx):
        self.events.append(f"open {self.name}")
        return self.name

    def close(self, resource):
        self.events.append(f"close {resource}")

    def process(self, key, rows, ctx):
        yield key.user, ctx.resource


def test_what_open_returned_is_that_of_the_new_code():
    Opening.events.clear()
    kit = begun(process(Opening("old")))
    kit.update(process(Opening("new")))
    assert {each["by"] for each in kit.epoch(LATER)["output"]} == {"new"}
    kit.close()
    assert Opening.events == ["open old", "close old", "open new", "close new"]


@pytest.mark.parametrize("crashes", [1, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["evolve", "another operator", "code", "more lateness"])
def test_no_crash_loses_or_repeats_anything(name, crashes):
    before, after, changes = ACCEPTED[name]
    script = [
        KitEpoch([*BEFORE, row(3, "b", v=7)]),
        KitEpoch(update=after, changes=changes, tag="before"),
        KitEpoch(LATER, slots=3),
    ]
    assert survives_every_crash(lambda: PipelineKit(before, rows=ROWS), script, crashes=crashes) > 15


def started_anew(kit: PipelineKit, before: Any, after: Any, changes: dict[str, Any]) -> None:
    """As at any start, the output of the last epoch is published by the pipeline that made it."""
    try:
        kit.restart(after, **changes)
    except BadInput as error:
        assert "was not published before the last stop" in str(error)
        kit.restart(before)
        kit.stop()
        kit.restart(after, **changes)


@pytest.mark.parametrize("name", ["evolve", "another operator"])
def test_a_crash_before_the_edit_leaves_the_old_state_and_one_after_it_the_new(name):
    """At each step of the update: the old pipeline is judged as at any start, and the new one goes on whichever it was."""
    before, after, changes = ACCEPTED[name]
    whole = begun(before)
    first = len(whole.steps.taken)
    whole.update(after, tag="before", **changes)
    steps = [CrashPoint(step, when) for step in range(first, len(whole.steps.taken)) for when in ("before", "after")]
    expected = gone_on(whole)
    switched = set()
    for point in steps:
        for with_new in (True, False):
            kit = begun(before)
            kit.crash_at(point)
            with pytest.raises(Crashed):
                kit.update(after, tag="before", **changes)
            committed = kit.store.history.refresh().epoch == 2
            assert kit.store.head.tags == ({"before": 1} if committed else {})
            switched.add(committed)
            if with_new:
                started_anew(kit, before, after, changes)
            elif committed:
                with pytest.raises(BadInput):
                    kit.restart(before)
                continue
            else:
                kit.restart(before)
                kit.update(after, tag="before", **changes)
            assert gone_on(kit) == expected, f"{point} of {kit.steps.taken[point.step]}"
    assert switched == {True, False}


def test_a_driver_that_was_superseded_changes_nothing():
    before, after, changes = ACCEPTED["evolve"]
    kit = begun(before)
    first = len(kit.steps.taken)
    kit.crash_at(CrashPoint(first, "before"), lambda: kit.store.writer("rival", force=True))
    head = kept(kit)
    with pytest.raises(Fenced):
        kit.update(after, tag="before", **changes)
    assert kept(kit) == head


def test_output_that_a_sink_refused_is_published_by_the_pipeline_that_made_it():
    kit = PipelineKit(process(Totals()), rows=ROWS)
    kit.epoch(BEFORE)

    def refuse():
        raise OSError("not now")

    kit.crash_at(CrashPoint(len(kit.steps.taken) + 3, "before"), refuse)
    with pytest.raises(OSError, match="not now"):
        kit.epoch(LATER)
    assert kit.store.head.epoch == 2
    assert kit.store.head.published < 2
    kit.update(keyed(lambda rows: rows.process(More(), name="totals")))
    assert len(kit.sinks["output"].epochs[2]) == 2
