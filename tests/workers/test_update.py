"""A pipeline on workers is replaced while it runs: workers end, and come again with the new operators."""

import os
import signal
from pathlib import Path

import pytest

import floodplain as fp
from floodplain.testing.pipeline_kit import PipelineKit
from tests.waiting import wait_for
from tests.workers.pipelines import ROWS, Gathered, Numbered, batches, shown, state_of
from tests.workers.worker_kit import WorkersKit

EPOCHS = 4


class Renumbered(Numbered):
    """The same state, and other output of it."""

    def process(self, key, rows, ctx):
        for user, number, place, before, calls, parity in super().process(key, rows, ctx):
            yield user, number, -place, before, calls, (parity + 1) % 5


class Opened(fp.KeyedProcess):
    """Says in which process it was opened, and as what."""

    output = "user string, pid long, name string"

    def __init__(self, name):
        self.name = name

    def open(self, ctx):
        return os.getpid(), self.name

    def process(self, key, rows, ctx):
        yield key.user, *ctx.resource


def made(numbered):
    def build(stream):
        rows = stream.watermark("ts", "1 second").key_by("user").process(numbered, name="numbered")
        return rows.key_by("parity").process(Gathered(), name="gathered").write("memory")

    return build


def opened(name):
    return lambda stream: stream.key_by("user").process(Opened(name), name="opened").write("memory")


@pytest.fixture
def kits(tmp_path):
    kits = []

    def kit(*arguments, **more):
        kits.append(WorkersKit(tmp_path / "state", *arguments, rows=ROWS, **more))
        return kits[-1].ready()

    yield kit
    for each in kits:
        each.close()


def played(kit, disturb=lambda kit: None):
    """What epochs give, half of them before an update and half after it."""
    rows = batches(EPOCHS)
    first = [shown(kit.epoch(each)) for each in rows[: EPOCHS // 2]]
    disturb(kit)
    kit.update(made(Renumbered()), tag="before")
    return [*first, *(shown(kit.epoch(each)) for each in rows[EPOCHS // 2 :])], state_of(kit)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_run_the_new_code_from_the_next_epoch_on(kits, workers):
    kit = kits(made(Numbered()), slots=4, workers=workers)
    before = kit.engine.coordinator.pids
    assert played(kit) == played(PipelineKit(made(Numbered()), rows=ROWS, slots=4))
    after = kit.engine.coordinator.pids
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    wait_for("the former processes to end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in before.values()))
    assert [(each.tries, each.moved_slots) for each in kit.progress] == [(1, 0)] * EPOCHS
    assert kit.engine.coordinator.losses == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_at_the_update_is_no_hindrance(kits, number):
    kit = kits(made(Numbered()), slots=4, workers=2)
    expected = played(PipelineKit(made(Numbered()), rows=ROWS, slots=4))
    lost = []

    def strike(kit):
        lost.append(kit.engine.coordinator.pids[0])
        os.kill(lost[0], number)

    assert played(kit, strike) == expected
    if number == signal.SIGSTOP:
        os.kill(lost[0], signal.SIGCONT)
    wait_for("it to end", lambda: not Path(f"/proc/{lost[0]}").exists())


def test_each_update_opens_the_resources_of_the_new_code(kits):
    kit = kits(opened("first"), slots=2, workers=2)
    pids = set()
    for name in ("first", "second", "third"):
        if name != "first":
            kit.update(opened(name))
        rows = kit.epoch([{"user": f"u{number}"} for number in range(20)])["output"]
        assert {row["name"] for row in rows} == {name}
        assert not pids & {row["pid"] for row in rows}
        pids |= {row["pid"] for row in rows}


def test_code_that_cannot_be_shipped_is_refused_and_the_running_one_goes_on(kits):
    class Local(Numbered):
        """Not importable, so that the kit cannot ship it. Spark could."""

    kit = kits(made(Numbered()), slots=2)
    head, pids = kit.store.head, kit.engine.coordinator.pids
    with pytest.raises(AttributeError):
        kit.update(made(Local()))
    assert (kit.store.head.epoch, kit.engine.coordinator.pids) == (head.epoch, pids)
    assert kit.epoch(batches(1)[0])["output"]
