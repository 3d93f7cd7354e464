"""Each process of tasks has exactly the manifest that was sent, whatever it had before, and fetches only what it needs."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.errors import Conflict
from floodplain.metrics import Counters
from floodplain.runtime.manifest_feed import FEW_RUNS, MOST_DELTAS, ManifestFeed, SentManifest
from floodplain.runtime.task_store import OpenStore
from floodplain.store.run.open_runs import OpenRuns
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.manifest import Manifest
from tests.store.test_many_slots import runs_of


@dataclass
class Wire:
    """What was shared, and how many bytes of it were fetched."""

    fetched: int = 0
    parts: list["Part"] = field(default_factory=list)

    def share(self, data: bytes) -> "Part":
        self.parts.append(Part(self, data))
        return self.parts[-1]


@dataclass
class Part:
    wire: Wire
    data: bytes
    closed: bool = False

    def bytes(self) -> bytes:
        assert not self.closed
        self.wire.fetched += len(self.data)
        return self.data

    def close(self) -> None:
        self.closed = True


def heads(epochs: int, slots: int, levels: int = 6) -> list[Manifest]:
    """After each epoch; the oldest runs go again, so that the number of runs stays the same."""
    runs = [runs_of(epoch, slots) for epoch in range(1, epochs + levels)]
    return [
        Manifest("s", 2 * slots, position=last, chain=f"c{last}", epoch=last, runs={"t": _flat(runs[last - levels : last])})
        for last in range(levels, epochs + levels)
    ]


def _flat(runs: list[tuple[RunRef, ...]]) -> tuple[RunRef, ...]:
    return tuple(ref for of_epoch in reversed(runs) for ref in of_epoch)


class Process:
    """One that runs tasks in some epochs."""

    def __init__(self) -> None:
        blobs = MemoryBlobs("memory://feed", Counters(), Space())
        self.place = OpenStore(blobs, OpenRuns(blobs, "s", 1 << 20))


@given(st.lists(st.sets(st.integers(0, 2), max_size=3), min_size=1, max_size=3 * MOST_DELTAS))
def test_every_process_has_the_manifest_that_was_sent(working: list[set[int]]) -> None:
    wire, processes = Wire(), [Process() for _ in range(3)]
    feed, slots = ManifestFeed(wire.share), 50
    for manifest, at_work in zip(heads(len(working), slots), working, strict=True):
        sent = feed.send(manifest)
        assert feed.send(manifest) is sent, "of an operator after the first"
        for number in at_work:
            assert processes[number].place.advance(sent) == manifest
            assert processes[number].place.advance(sent) is processes[number].place.manifest, "nothing is decoded twice"


def test_small_manifests_travel_with_the_tasks() -> None:
    wire = Wire()
    feed = ManifestFeed(wire.share)
    for manifest in heads(4, FEW_RUNS // 6 - 1):
        assert Process().place.advance(feed.send(manifest)) == manifest
    assert not wire.parts


def test_a_process_that_was_there_fetches_what_changed_only() -> None:
    """With four times the slots, four times the bytes: what stays is not fetched again."""
    fetched = []
    for slots in (64, 256):
        wire = Wire()
        process, feed = Process(), ManifestFeed(wire.share)
        first, *later = heads(3, slots)
        process.place.advance(feed.send(first))
        whole, wire.fetched = wire.fetched, 0
        for manifest in later:
            process.place.advance(feed.send(manifest))
        assert wire.fetched < 2 * whole / 4
        fetched.append(wire.fetched)
    assert fetched[1] < 4.4 * fetched[0]


def test_what_nobody_asks_for_any_more_is_let_go_of() -> None:
    wire = Wire()
    feed = ManifestFeed(wire.share)
    for manifest in heads(3 * MOST_DELTAS, 64):
        feed.send(manifest)
    assert sum(not part.closed for part in wire.parts) <= 1 + MOST_DELTAS
    feed.close()
    assert all(part.closed for part in wire.parts)


def test_another_manifest_than_the_one_that_was_sent_is_refused() -> None:
    first, second, third = heads(3, 64)
    wire = Wire()
    feed = ManifestFeed(wire.share)
    feed.send(first)
    sent = feed.send(second)
    stray = msgspec.structs.replace(first, chain="stray")
    assert sent.manifest(stray) == second, "what it had is not used"
    for mixed in (
        SentManifest(sent.whole, (), (first.chain, third.chain)),
        SentManifest(sent.whole, sent.deltas * 2, sent.chains),
    ):
        with pytest.raises(Conflict, match="not that of the epoch's start"):
            mixed.manifest(None)
