"""What sources have noted, in the fold: objects take the place of what they hold, and of nothing else."""

from itertools import product

import pytest

from floodplain.tiers import paths
from floodplain.versions.records import sources
from floodplain.versions.records.edit import AdvanceHorizon, CommitEpoch, SeenRef, SourcePosition
from floodplain.versions.records.manifest import BrokenHistory, Manifest
from floodplain.versions.records.sealing import FAN_IN, Maker, proposed, sealed
from floodplain.versions.records.seen import SeenEntry
from floodplain.versions.records.vouched import FileSum
from tests.versions.records.test_fold import fold, started

SOME = FileSum(1, 1)
SPANS = [(first, last) for first, last in product(range(5), repeat=2) if first <= last]


def ref(first: int, last: int, source: str = "sources/0", start: int = 9) -> SeenRef:
    return SeenRef(source, first, last, paths.seen(start, "1-1-0", f"s{first}_{last}"), SOME, SOME)


def after(manifest: Manifest, position: SourcePosition) -> Manifest:
    return fold(manifest, CommitEpoch(manifest.epoch + 1, (), source=position))


@pytest.mark.parametrize("held", SPANS)
def test_an_object_takes_the_place_of_what_lies_within_it_and_overlaps_nothing_else(held):
    old, other = ref(*held), ref(*held, source="sources/1")
    before = after(started(), SourcePosition("q", 0, "o", seen=(old, other)))
    for span in SPANS:
        new, position = ref(*span, start=10), SourcePosition("q", 1, "o", seen=(ref(*span, start=10),))
        inside = span[0] <= held[0] and held[1] <= span[1]
        apart = span[1] < held[0] or held[1] < span[0]
        if not inside and not apart:
            with pytest.raises(BrokenHistory, match="seen files of sources/0"):
                after(before, position)
            continue
        found = after(before, position)
        assert set(found.source.seen) == ({new, other} if inside else {new, old, other})
        assert found.objects() >= {one.object for one in found.source.seen}


@pytest.mark.parametrize("span", SPANS)
def test_texts_within_an_object_go(span):
    notes = {f"sources/{source}/{number}": "v1" for source in range(2) for number in range(5)} | {"batches/3": "done"}
    before = after(started(), SourcePosition("q", 0, "o", notes))
    found = after(before, SourcePosition("q", 1, "o", {"sources/0/7": "v1"}, seen=(ref(*span),)))
    gone = {f"sources/0/{number}" for number in range(span[0], span[1] + 1)}
    assert found.source.sources.keys() == (notes.keys() - gone) | {"sources/0/7"}


def test_a_text_that_replaces_all_before_it_does_so():
    notes = {f"sources/0/{number}": "v1" for number in range(6, 10)}
    before = after(started(), SourcePosition("q", 0, "o", notes, seen=(ref(0, 3), ref(4, 5), ref(0, 9, source="sources/1"))))
    found = after(before, SourcePosition("q", 1, "o", {"sources/0/8.compact": "v1"}))
    assert found.source.sources.keys() == {"sources/0/8.compact", "sources/0/9"}
    assert found.source.seen == (ref(0, 9, source="sources/1"),)


def test_only_the_newest_of_the_files_that_replace_others_is_kept_of_each_source():
    before = SourcePosition(compacts={"sources/0/9.compact": SOME, "sources/1/4.compact": SOME})
    found = sources.advanced(before, SourcePosition(compacts={"sources/0/19.compact": SOME}))
    assert [*found.compacts] == ["sources/0/19.compact", "sources/1/4.compact"]


def test_an_object_from_below_the_horizon_cannot_be_named():
    """It may be deleted by now."""
    manifest = fold(started(), AdvanceHorizon(3))
    for start in range(6):
        position = SourcePosition("q", 0, "o", seen=(ref(0, 0, start=start),))
        if start <= 3:
            with pytest.raises(BrokenHistory, match="begun after the horizon 3"):
                after(manifest, position)
        else:
            after(manifest, position)


@pytest.mark.parametrize("size", [1, 7, 50, 99, 100, 101, 1000])
def test_bytes_are_written_once_per_tier_and_objects_stay_few(size):
    """However large the entries are: 2,000 of them, of which 100 bytes stay as text."""
    stored: dict[str, tuple[SeenEntry, ...]] = {}
    written, position, most, names = 0, SourcePosition(), 0, iter(range(10**9))

    def write(name: str, data: bytes) -> None:
        nonlocal written
        written += len(data)

    for number in range(2000):
        update = SourcePosition("q", number, "o", {f"sources/0/{number}": "v1\n" + "x" * size})
        for sealing in proposed(position, update, 100):
            joined = [entry for one in sealing.objects for entry in stored[one.object]]
            entries = (*joined, *sealing.entries)
        maker = Maker("s", lambda part: paths.seen(next(names), "1-1-0", part), lambda one: stored[one.object], write)
        sealed_update = sealed(position, update, maker, 100)
        for one in sealed_update.seen:
            stored[one.object] = entries
        position = sources.advanced(position, sealed_update)
        most = max(most, len(position.seen))
        assert sum(len(text) for text in position.sources.values()) <= 100
    total = 2000 * (size + 15)
    assert most <= 7 * FAN_IN
    assert written <= 7 * total
    numbers = [entry.number for one in position.seen for entry in stored[one.object]]
    assert numbers + [int(name.rpartition("/")[2]) for name in position.sources] == [*range(2000)]
