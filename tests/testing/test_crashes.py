"""Every point at which a driver can die: in its first start, in epochs with and without rows, while it recovers."""

from collections import Counter
from typing import ClassVar

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Fenced
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.settings import StoreSettings
from floodplain.testing.faults import CrashPoint
from floodplain.testing.pipeline_kit import Columns, KitEpoch, PipelineKit, survives_every_crash
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import lease
from floodplain.versions.log.history import History
from tests.processes import Echo
from tests.testing.rivals import refused_everywhere, superseded_everywhere
from tests.testing.test_pipeline_kit import ROWS, branching, counting, picky, priced, rows, waiting

TIMED = "user string, at long"
WHERE = {"settings": StoreSettings(), "clock": ManualClock(), "randomness": SeededRandomness(3)}
A, B = ({"user": user, "at": at} for user, at in (("a", 1000), ("b", 1500)))


def echoing(stream):
    return stream.key_by("user").process(Echo()).write("memory")


SCRIPTS = {
    "priced": (
        lambda stream: priced(stream, Columns(pa.schema({"item": pa.string(), "price": pa.int64()}))),
        ROWS,
        [KitEpoch(rows("a", "b")), KitEpoch(rows("a", "c"), slots=3), KitEpoch(rows("b"), slots=1)],
    ),
    "picky": (
        picky,
        ROWS,
        [KitEpoch([{"user": user, "amount": sign} for user in "abc"] + [{"user": "a", "amount": 1}]) for sign in (1, -1, 1)],
    ),
    "counting": (
        counting,
        ROWS,
        [KitEpoch(rows("a", "b", "a")), KitEpoch(rows("b", "c"), slots=3), KitEpoch(rows("a", "c", "c"), slots=1)],
    ),
    "branching": (branching, ROWS, [KitEpoch(rows(*"aaaabbbbb")), KitEpoch(rows(*"aabbbbbc"), slots=1)]),
    "waiting": (
        waiting,
        TIMED,
        [
            KitEpoch([A, B], watermark_ms=400),
            KitEpoch([{"user": "b", "at": 1600}, {"user": "a", "at": 300}], watermark_ms=1999),
            KitEpoch(None, watermark_ms=2000, slots=3),
            KitEpoch([{"user": "c", "at": 2001}], watermark_ms=2000),
            KitEpoch(None, watermark_ms=9000),
        ],
    ),
    "echoing": (
        echoing,
        ROWS,
        [
            KitEpoch(rows("a", "b"), now_ms=5),
            KitEpoch(None, now_ms=14),
            KitEpoch(None, now_ms=15),
            KitEpoch(rows("a"), now_ms=16),
            KitEpoch(None, now_ms=26),
        ],
    ),
    "static": (
        waiting,
        TIMED,
        [
            KitEpoch([A, B, {"user": "b", "at": 9000}], batch="monday", finish=False),
            KitEpoch([A, {"user": "c", "at": 9100}], batch="tuesday", slots=3),
            KitEpoch([A, {"user": "c", "at": 9100}], batch="tuesday"),
            KitEpoch([{"user": "d", "at": 9200}]),
        ],
    ),
}
BRIEF = {
    "echoing": (echoing, ROWS, [KitEpoch(rows("a"), now_ms=5), KitEpoch(None, now_ms=15)]),
    "static": (waiting, TIMED, [KitEpoch([A, B], batch="monday")]),
}


class RemoteKit(PipelineKit):
    """On an object store, where small output rides in the edit."""

    def _blobs(self) -> Blobs:
        blobs = super()._blobs()
        blobs.tier = "object"
        return blobs


def made(script, inline_bytes: int = 0, kit: type[PipelineKit] = PipelineKit) -> PipelineKit:
    build, columns, _ = script
    return kit(build, rows=columns, settings=StoreSettings(key_groups=16, inline_bytes=inline_bytes, checkpoint_every=4))


def survived(script, *, inline_bytes: int = 0, crashes: int = 1) -> int:
    return survives_every_crash(lambda: made(script, inline_bytes), script[2], crashes=crashes)


@pytest.mark.parametrize("inline_bytes", [0, 64 << 10], ids=["objects", "inline"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_crash_loses_or_repeats_anything(name, inline_bytes):
    assert survived(SCRIPTS[name], inline_bytes=inline_bytes) > 20


@pytest.mark.parametrize("name", ["branching", "counting", "static"])
def test_no_crash_loses_or_repeats_output_that_rides_in_an_edit(name):
    script = SCRIPTS[name]
    assert survives_every_crash(lambda: made(script, 64 << 10, RemoteKit), script[2]) > 15


@pytest.mark.parametrize("name", ["branching", "counting"])
def test_no_driver_that_takes_over_loses_output_that_rides_in_an_edit(name):
    script = SCRIPTS[name]
    assert superseded_everywhere(lambda: made(script, 64 << 10, RemoteKit), script[2]) > 15


def test_a_driver_that_is_superseded_in_its_commit_publishes_nothing():
    """Its epoch counts, and is the other driver's to publish."""
    first, second = made(SCRIPTS["counting"]), made(SCRIPTS["counting"])
    begun = len(first.steps.taken)
    first.epoch(rows("a"))
    step = next(step for step, name in enumerate(first.steps.taken) if step >= begun and name.startswith("create log/"))
    second.crash_at(CrashPoint(step, "after"), lambda: lease.take(History.open(second._blobs(), **WHERE), "other", force=True))
    with pytest.raises(Fenced, match="superseded by lease 2 of 'other'"):
        second.epoch(rows("a"))
    assert second.store.head.epoch == 1
    assert [sink.epochs for sink in second.sinks.values()] == [{}]


@pytest.mark.parametrize("name", BRIEF)
def test_no_crash_while_recovering_from_a_crash_loses_or_repeats_anything(name):
    once = survived(BRIEF[name])
    assert survived(BRIEF[name], crashes=2) > 4 * once


@pytest.mark.parametrize("name", ["branching", "counting", "echoing", "static"])
def test_no_driver_that_takes_over_loses_or_repeats_anything(name):
    """The one that it supersedes is at any step, and goes on from there: it commits and publishes nothing more."""
    script = {**SCRIPTS, **BRIEF}[name]
    assert superseded_everywhere(lambda: made(script), script[2]) > 20


@pytest.mark.parametrize("name", ["branching", "counting", "echoing", "waiting"])
def test_what_a_sink_refuses_is_published_before_the_next_epoch(name):
    """Whether that has rows or comes because time passes. An edit names the output of its own epoch only."""
    assert refused_everywhere(lambda: made(SCRIPTS[name]), SCRIPTS[name][2]) >= 3


class Forgetful(KeyedProcess):
    """Counts rows where no restart finds them."""

    counts: ClassVar[Counter[str]] = Counter()
    output = "user string, n long"

    def process(self, key, rows, ctx):
        self.counts[key.user] += len(rows)
        yield key.user, self.counts[key.user]


@pytest.mark.parametrize("crashes", [1, 2])
def test_what_a_crash_changes_is_found_and_the_crash_is_named(crashes):
    def make() -> PipelineKit:
        return PipelineKit(lambda stream: stream.key_by("user").process(Forgetful()).write("memory"), rows=ROWS)

    with pytest.raises(AssertionError, match=r"after a crash before step 0 \(create format\): \['sink output'\] differ"):
        survives_every_crash(make, [KitEpoch(rows("a"))], crashes=crashes)


@pytest.mark.soak
@pytest.mark.parametrize("inline_bytes", [0, 64 << 10], ids=["objects", "inline"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_two_crashes_in_a_row_lose_or_repeat_anything(name, inline_bytes):
    assert survived(SCRIPTS[name], inline_bytes=inline_bytes, crashes=2) > 100


@pytest.mark.soak
@pytest.mark.parametrize("name", BRIEF)
def test_no_three_crashes_in_a_row_lose_or_repeat_anything(name):
    assert survived(BRIEF[name], crashes=3) > 500
