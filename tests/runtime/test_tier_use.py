"""What is asked of tiers is counted for who asked, once, and stands in progress and in the state."""

import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.metrics import Counters
from floodplain.prices import AMAZON
from floodplain.runtime.store_upkeep import StoreUpkeep
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tier_use import COMMIT, OTHER, PUBLISH, UPKEEP, TierUse, UseTally, carried_tally, tallied, tiers_sum, uses_sum
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.fan_out import fan_out
from floodplain.tiers.memory import MemoryBlobs
from floodplain.tiers.open import open_blobs
from tests.processes import ByCount, Count, Tally
from tests.tiers.fake_s3 import FakeS3, serving
from tests.workers.worker_kit import WorkersKit

ROWS = "user string, amount long"
KINDS = ("puts", "gets", "lists", "deletes", "heads")


def counting(stream):
    return stream.key_by("user").process(Count()).write("memory")


def branching(stream):
    tally = stream.key_by("user").process(Tally())
    by_count = tally.key_by("n").process(ByCount())
    return tally.write("memory").also(by_count.write("memory", name="by"))


def stateless(stream):
    return stream.write("memory")


class ObjectKit(PipelineKit):
    """On an object store that keeps a record of what it was asked for."""

    def __init__(self, fake: FakeS3, *args, **more) -> None:
        self.fake = fake
        super().__init__(*args, **more)

    def _blobs(self) -> Blobs:
        return open_blobs(
            "s3://bucket/state",
            self._settings,
            options=self.fake.options,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            counters=self._counters,
        )


def received(fake: FakeS3) -> Counter[str]:
    kinds = {"PUT": "puts", "HEAD": "heads", "POST": "deletes", "DELETE": "deletes"}
    return Counter("lists" if "list-type" in path else kinds.get(method, "gets") for method, path in fake.requests)


@pytest.mark.parametrize("build", [counting, branching, stateless])
@pytest.mark.parametrize("cached", [False, True])
def test_each_request_that_the_store_gets_is_counted_once_for_who_made_it(build, cached, tmp_path):
    cache = CacheSettings(str(tmp_path / "cache"), 8 << 20) if cached else None
    settings = StoreSettings(key_groups=16, inline_bytes=0, cache=cache)
    with serving() as fake:
        kit = ObjectKit(fake, build, rows=ROWS, slots=2, settings=settings)
        for number in range(4):
            kit.epoch([{"user": f"u{each}", "amount": 1} for each in range(number, 9)])
        seen = received(fake)
    used = uses_sum(*(progress.used for progress in kit.progress))
    counted = tiers_sum(used)["object"]
    assert {kind: getattr(counted, kind) for kind in KINDS} == {kind: seen[kind] for kind in KINDS}
    assert used[COMMIT]["object"].puts >= 4
    assert used[PUBLISH]["object"].gets >= 4
    operators = {operator for progress in kit.progress for operator in progress.operators}
    assert operators | {"output"} >= set(used) - {COMMIT, PUBLISH, OTHER} >= operators
    for operator in operators:
        assert used[operator]["object"].puts >= 4
        assert used[operator]["object"].waited_us > 0
    last = kit.progress[-1]
    assert last.cost == pytest.approx(AMAZON.of(last.tiers["object"]))
    assert last.cost > 0
    assert cached == ("disk" in tiers_sum(used)) or build is stateless
    # The state tells of all but what came since its last commit began.
    assert kit.store.head.used_epochs == 4
    rest = kit._epochs._unrecorded.new()
    assert uses_sum(kit.store.head.used, rest) == used
    assert rest.keys() == {COMMIT, PUBLISH}


def test_workers_return_what_they_asked_for(tmp_path):
    settings = StoreSettings(key_groups=16, inline_bytes=0, sync=False)
    kit = WorkersKit(tmp_path / "state", counting, rows=ROWS, settings=settings).ready()
    try:
        for _ in range(2):
            kit.epoch([{"user": f"u{each}", "amount": 1} for each in range(9)])
        used = kit.progress[-1].used
        assert used["count"]["directory"].puts >= 4, "each of two workers writes a run, and stages output"
        assert used["count"]["directory"].gets >= 2
        assert used[COMMIT]["directory"].puts >= 1
        assert kit.store.head.used["count"]["directory"].puts >= used["count"]["directory"].puts
    finally:
        kit.close()


def test_a_restart_and_a_rollback_keep_what_was_asked_for():
    kit = PipelineKit(counting, rows=ROWS)
    for _ in range(3):
        kit.epoch([{"user": "ada", "amount": 1}])
    before = kit.store.head.used
    kit.restart()
    kit.epoch([{"user": "ada", "amount": 1}])
    after = kit.store.head.used
    assert all(after[user][tier].requests >= use.requests for user, tiers in before.items() for tier, use in tiers.items())
    kit.stop()
    kit.store.rollback(2)
    assert kit.store.head.used == after
    assert kit.store.head.used_epochs == 4


def test_progress_is_shown_as_json():
    kit = PipelineKit(counting, rows=ROWS)
    kit.epoch([{"user": "ada", "amount": 1}])
    shown = msgspec.json.decode(msgspec.json.encode(kit.progress[-1]))
    assert shown["used"][COMMIT]["memory"]["puts"] > 0
    assert shown["used"]["count"]["memory"] == {
        "puts": 1,
        "written_bytes": kit.progress[-1].used["count"]["memory"].written_bytes,
    }
    assert shown["cost"] == 0.0


def test_upkeep_is_counted_as_such():
    kit = PipelineKit(counting, rows=ROWS)
    for _ in range(8):
        kit.epoch([{"user": "ada", "amount": 1}])
    before = kit.store.counters.tally.uses()
    StoreUpkeep(kit.store, lambda: None).round()
    after = kit.store.counters.tally.uses()
    assert after[UPKEEP]["memory"].puts > 0
    assert {user: tiers for user, tiers in after.items() if user != UPKEEP} == before


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_count_for_who_started_them(threads):
    blobs = MemoryBlobs("memory://threads", Counters())
    blobs.answers_at_once = False
    blobs.put("runs/a", b"abc")
    one, other = UseTally(), UseTally()
    with tallied(one, "counter"):
        fan_out(blobs, blobs.get, ["runs/a"] * 8, threads)
        with tallied(other, "inner"):
            thread = threading.Thread(target=carried_tally(lambda: blobs.get("runs/a")))
            thread.start()
            thread.join()
        blobs.get("runs/a")
    assert one.uses() == {"counter": {"memory": TierUse(gets=9, read_bytes=27)}}
    assert other.uses() == {"inner": {"memory": TierUse(gets=1, read_bytes=3)}}


def test_what_is_asked_for_outside_any_block_is_other(tmp_path: Path):
    counters = Counters()
    MemoryBlobs("memory://other", counters).put("runs/a", b"abc")
    assert counters.tally.uses() == {OTHER: {"memory": TierUse(puts=1, written_bytes=3)}}
