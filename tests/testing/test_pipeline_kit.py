"""Whole pipelines without Spark: results, time, restarts, drivers that take over. Every crash: see ``test_kit_crashes``."""

import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from floodplain.errors import BadInput, Fenced
from floodplain.settings import StoreSettings
from floodplain.testing.faults import Crashed, CrashPoint
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.testing.process_kit import ProcessKit
from floodplain.tiers import paths
from tests.processes import ByCount, BySource, Count, Echo, LastSeen, Picky, Priced, Tally

ROWS = "user string, amount long"


def rows(*users: str) -> list[dict[str, object]]:
    return [{"user": user, "amount": 1} for user in users]


def counting(stream):
    return stream.key_by("user").process(Count()).write("memory")


def branching(stream):
    tally = stream.key_by("user").process(Tally())
    by_count = tally.key_by("n").process(ByCount())
    return tally.write("memory").also(tally.side("fives").write("memory", name="fives")).also(by_count.write("memory", name="by"))


def waiting(stream, **options):
    return stream.watermark("at", "1 second", **options).key_by("user").process(LastSeen()).write("memory")


def test_a_pipeline_gives_what_it_gives_on_spark():
    kit = PipelineKit(branching, rows=ROWS, slots=3)
    out = kit.epoch(rows(*["ada"] * 6, "bob"))
    assert sorted(row["n"] for row in out["output"]) == [1, 6]
    assert out["fives"] == [{"user": "ada", "n": 6}]
    assert sorted((row["n"], row["users"]) for row in out["by"]) == [(1, ["bob"]), (6, ["ada"])]
    kit.rescale(1)
    assert kit.epoch(rows("ada"))["output"] == [{"user": "ada", "n": 7}]
    assert [progress.slots for progress in kit.progress] == [3, 1]
    assert {row["user"]: row["n"] for row in kit.state("tally")} == {"ada": 7, "bob": 1}


def test_several_inputs_and_steps_in_spark():
    def build(stream):
        return stream.transform(lambda df: df.where("ad > 0")).key_by("ad").process(BySource()).write("memory")

    inputs = {"clicks": "ad long, where string", "impressions": "ad long"}
    kit = PipelineKit(build, rows=inputs, transforms=[lambda table: table.filter(pc.greater(table["ad"], 0))])
    out = kit.epoch([{"ad": 1, "source": "clicks"}, {"ad": 0, "source": "clicks"}, {"ad": 1, "source": "impressions"}])
    assert out["output"] == [{"ad": 1, "shown": 1, "clicks": 1}]
    with pytest.raises(BadInput, match="1 transform steps, and the kit got 0"):
        PipelineKit(build, rows=inputs)


def test_time_is_an_argument():
    kit = PipelineKit(waiting, rows="user string, at long")
    assert kit.epoch([{"user": "a", "at": 1000}, {"user": "b", "at": 2000}], watermark_ms=500)["output"] == []
    assert kit.epoch([], watermark_ms=2000)["output"] == [{"user": "a", "n": 1, "at": 2000}]
    assert kit.epoch([{"user": "b", "at": 1999}], watermark_ms=2500)["output"] == [], "late by the watermark before"
    assert not kit.tick(now_ms=10)
    assert kit.epoch([], watermark_ms=3000)["output"] == [{"user": "b", "n": 1, "at": 3000}]


def test_the_watermark_may_move_when_no_data_comes():
    kit = PipelineKit(waiting, rows="user string, at long")
    kit.epoch([{"user": "a", "at": 1000}, {"user": "b", "at": 5000}], watermark_ms=500)
    assert not kit.tick(now_ms=1) and not kit.tick(now_ms=1, watermark_ms=1999)
    assert kit.tick(now_ms=1, watermark_ms=2000)
    assert kit.sinks["output"].epochs[2].to_pylist() == [{"user": "a", "n": 1, "at": 2000}]
    with pytest.raises(BadInput, match="computes its watermark from its rows"):
        PipelineKit(lambda stream: waiting(stream, idle="1 second"), rows="user string, at long").tick(now_ms=5, watermark_ms=6)


def test_what_foreach_batch_would_be_called_with_is_kept_too():
    def build(stream):
        return stream.key_by("user").process(Count()).foreach_batch(lambda df, epoch: df.write.save("…"))

    kit = PipelineKit(build, rows=ROWS)
    assert kit.epoch(rows("a"))["output"] == [{"user": "a", "n": 1, "total": 1}]
    assert kit.schemas["output"].names == ["user", "n", "total"]


@pytest.mark.parametrize("slots", [0, -1, 17, 2.5])
def test_slots_that_are_not_possible_are_refused(slots):
    """The kit has 16 key groups."""
    refused = "slots are not possible: use 1 to 16, which is the number of key groups"
    with pytest.raises(BadInput, match=f"{slots} {refused}"):
        PipelineKit(counting, rows=ROWS, slots=slots)
    with pytest.raises(BadInput, match=f"{slots} {refused}"):
        ProcessKit(Count(), rows=ROWS, keys=["user"], slots=slots)
    kit = PipelineKit(counting, rows=ROWS, slots=16)
    with pytest.raises(BadInput, match=f"{slots} {refused}"):
        kit.rescale(slots)
    kit.restart()
    kit.epoch(rows("a"))
    assert kit.progress[-1].slots == 16


def picky(stream):
    return stream.key_by("user").process(Picky(), on_error="dead_letter").write("memory")


def test_dead_letters_are_counted_and_kept():
    kit = PipelineKit(picky, rows=ROWS)
    out = kit.epoch([{"user": "a", "amount": 1}, {"user": "a", "amount": -1}, {"user": "b", "amount": -2}])
    assert out["output"] == [{"user": "a", "n": 1}]
    assert kit.progress[0].dead == 2
    assert sorted(row["user"] for row in kit.state("picky__dead_letters")) == ["a", "b"]


def priced(stream, prices):
    return stream.key_by("user").process(Priced(), broadcast=prices).write("memory")


def test_broadcast_rows_reach_all_slots_and_task_values_survive_rescaling():
    kit = PipelineKit(priced, rows=ROWS, broadcasts={"prices": "item string, price long"}, slots=3)
    kit.epoch(broadcast={"prices": [{"item": "tea", "price": 5}]})
    names = [f"u{n}" for n in range(20)]
    assert {row["spent"] for row in kit.epoch(rows(*names))["output"]} == {5}
    assert sum(row["value"] for row in kit.state("priced__seen")) == 20
    kit.rescale(2)
    out = kit.epoch(rows(*names), broadcast={"prices": [{"item": "tea", "price": 7}]})
    assert {row["spent"] for row in out["output"]} == {12}, "broadcast rows come before the others"
    assert [row["value"] for row in kit.state("priced__seen")] != [0, 0]
    assert sum(row["value"] for row in kit.state("priced__seen")) == 40


def test_an_epoch_larger_than_the_budget_gives_the_same():
    users = [f"u{n % 97}" for n in range(2000)]
    outcomes = []
    for budget in (1 << 20, 2000):
        kit = PipelineKit(branching, rows=ROWS, settings=StoreSettings(key_groups=64, epoch_bytes=budget))
        kit.epoch(rows(*users))
        kit.epoch(rows(*users[:700]))
        outcomes.append(kit.outcome())
    assert outcomes[0] == outcomes[1]


def test_a_crash_between_commit_and_publish_is_seen():
    """The net catches what it is for: a sink that publishes before the commit, or not after a restart."""
    kit = PipelineKit(counting, rows=ROWS)
    kit.epoch(rows("a"))
    publish = next(n for n, step in enumerate(kit.steps.taken) if step.startswith("publish"))
    kit = PipelineKit(counting, rows=ROWS)
    kit.crash_at(CrashPoint(publish, "before"))
    with pytest.raises(Crashed):
        kit.epoch(rows("a"))
    assert kit.sinks["output"].epochs == {}
    kit.restart()
    assert [len(table) for table in kit.sinks["output"].epochs.values()] == [1]


def test_a_driver_that_was_superseded_between_commit_and_publish_publishes_nothing():
    kit = PipelineKit(counting, rows=ROWS)
    kit.epoch(rows("a"))
    commit = max(
        n for n, step in enumerate(kit.steps.taken[: kit.steps.taken.index("publish output 1")]) if "create log/" in step
    )
    paused = PipelineKit(counting, rows=ROWS)
    old = paused._epochs
    published = []

    def taken_over() -> None:
        paused._pending = None
        paused.restart()
        published.extend(paused.sinks["output"].epochs)

    paused.crash_at(CrashPoint(commit, "after"), taken_over)
    with pytest.raises(Fenced):
        paused.epoch(rows("a"))
    assert published == [1], "the new driver published what the old one had committed"
    assert [step for step in paused.steps.taken if step.startswith("publish")] == ["publish output 1"], "and the old one did not"
    with pytest.raises(Fenced):
        old.run(None, None, 0, 0)


def test_output_that_a_sink_refused_is_published_before_the_next_epoch():
    """Also if that is one without rows, which no batch of Spark's comes before."""
    kit = PipelineKit(lambda stream: stream.key_by("user").process(Echo()).write("memory"), rows=ROWS)
    commit = len(kit.steps.taken) + len(_steps_of_an_epoch(Echo(), "publish output 1"))
    kit.crash_at(CrashPoint(commit, "before"), _refuse)
    with pytest.raises(OSError, match="no space"):
        kit.epoch(rows("a"), now_ms=5)
    assert kit.sinks["output"].epochs == {}
    assert kit.tick(now_ms=100)
    assert {epoch: table["user"].to_pylist() for epoch, table in kit.sinks["output"].epochs.items()} == {1: ["a"], 2: ["a again"]}


def test_output_that_a_sink_refused_is_published_before_a_heartbeat_moves_time():
    """It is an epoch of its own, and an edit names the output of its own epoch only."""

    def build(stream):
        return stream.watermark("at", "0 ms", idle="1 hour").key_by("user").process(Count()).write("memory")

    def refused(step: int) -> PipelineKit:
        kit = PipelineKit(build, rows="user string, amount long, at long")
        kit.crash_at(CrashPoint(step, "before"), _refuse)
        return kit

    given = [{"user": "a", "amount": 1, "at": 5}]
    untouched = refused(-1)
    untouched.epoch(given)
    kit = refused(untouched.steps.taken.index("publish output 1"))
    with pytest.raises(OSError, match="no space"):
        kit.epoch(given)
    kit.heartbeat(10)
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"user": "a", "n": 1, "total": 1}]


def test_output_that_a_sink_refused_waits_for_the_next_driver():
    kit = PipelineKit(counting, rows=ROWS)
    kit.crash_at(CrashPoint(len(kit.steps.taken) + len(_steps_of_an_epoch(Count(), "publish output 1")), "before"), _refuse)
    with pytest.raises(OSError, match="no space"):
        kit.epoch(rows("a"), now_ms=5)
    kit._epochs.close()
    kit.restart()
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"user": "a", "n": 1, "total": 1}]


def test_a_start_publishes_what_was_committed_also_if_its_batch_is_not_offered_again():
    kit = PipelineKit(counting, rows=ROWS)
    kit.crash_at(CrashPoint(len(kit.steps.taken) + len(_steps_of_an_epoch(Count(), "publish output 1")), "before"), _refuse)
    with pytest.raises(OSError, match="no space"):
        kit.epoch(rows("a"), now_ms=5)
    kit._epochs.close()
    kit._pending = None
    kit.restart()
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"user": "a", "n": 1, "total": 1}]


def test_a_driver_that_was_superseded_deletes_nothing_of_the_next_one():
    """Neither when it ends nor when it only now clears up what it found at its start."""
    kit = PipelineKit(counting, rows=ROWS)
    starting, ending = kit._epochs, kit._epochs
    kit.restart()
    publish = len(kit.steps.taken) + len(_steps_of_an_epoch(Count(), "publish output 1"))
    kit.crash_at(CrashPoint(publish, "before"), _refuse)
    with pytest.raises(OSError, match="no space"):
        kit.epoch(rows("a"), now_ms=5)
    with pytest.raises(Fenced):
        ending.publisher.publish()
    ending.close()
    starting.publisher.publish = lambda: None
    starting.prepare({"": kit._inputs[""].empty_table()})
    kit.restart()
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"user": "a", "n": 1, "total": 1}]


def test_what_other_attempts_staged_is_swept_while_the_driver_runs():
    kit = PipelineKit(counting, rows=ROWS)
    kit.epoch(rows("a"))
    kit.epoch(rows("a", "b"))
    token, blobs = kit._epochs.writer.token, kit.store.history.blobs
    named = {
        (lease, epoch): paths.staged(1, f"{lease}-{epoch}-late", "count", "main", "0-99")
        for lease in (token - 1, token, token + 1)
        for epoch in (1, 2, 3)
    }
    for name in named.values():
        blobs.create(name, b"")
    kit._epochs.publisher.sweep_staged()
    left = {info.name for info in blobs.list(paths.STAGED)}
    gone = {author for author, name in named.items() if name not in left}
    assert gone == {(token - 1, 1), (token - 1, 2), (token - 1, 3), (token, 1)}
    assert left.issuperset(kit.store.head.outputs) and kit.store.head.outputs


def _refuse() -> None:
    raise OSError("no space left")


def _steps_of_an_epoch(process, until: str) -> list[str]:
    kit = PipelineKit(lambda stream: stream.key_by("user").process(process).write("memory"), rows=ROWS)
    first = len(kit.steps.taken)
    kit.epoch(rows("a"), now_ms=5)
    return kit.steps.taken[first : kit.steps.taken.index(until)]


def test_the_kit_needs_no_spark(tmp_path: Path):
    (tmp_path / "pyspark.py").write_text("raise ImportError('no Spark here')")
    root = Path(__file__).resolve().parents[2]
    program = "from tests.testing import test_pipeline_kit; test_pipeline_kit.test_time_is_an_argument(); print('fine')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": f"{tmp_path}:{root}"}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "fine\n", done.stderr
