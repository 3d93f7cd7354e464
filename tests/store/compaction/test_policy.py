"""When to compact: goldens for manifests drawn by hand, and what must hold for any."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.store.compaction.policy import Proposal, TieredPolicy, bands, full
from floodplain.versions.records.edit import GroupRanges, RunRef
from floodplain.versions.records.groups import intersect
from floodplain.versions.records.manifest import Manifest

ALL = ((0, 16),)
POLICY = TieredPolicy(step_bytes=1000, fan_in=4)


def run(epoch: int, size: int, groups: GroupRanges = ALL, low: int | None = None, **traits: object) -> RunRef:
    ref = RunRef(
        object=f"runs/{epoch}-{groups[0][0]}",
        offset=0,
        length=size,
        footer_length=1,
        footer_checksum=0,
        object_size=size,
        table="t",
        schema_id=1,
        low=epoch if low is None else low,
        high=epoch,
        groups=groups,
        rows=1,
        written_groups=sum(high - low_ for low_, high in groups),
        added=epoch,
    )
    return msgspec.structs.replace(ref, **traits)


def manifest(*runs: RunRef) -> Manifest:
    newest_first = tuple(sorted(runs, key=lambda ref: (-ref.high, ref.groups)))
    return Manifest("s", 16, epoch=max((ref.high for ref in runs), default=0), runs={"t": newest_first})


def sizes(*newest_first: int) -> Manifest:
    """One run per epoch over all key groups."""
    count = len(newest_first)
    return manifest(*(run(count - n, size) for n, size in enumerate(newest_first)))


def text(proposals: list[Proposal]) -> list[str]:
    lines = []
    for proposal in proposals:
        runs = "+".join(str(ref.high) for ref in proposal.runs)
        lines.append(f"{runs} groups {proposal.groups[0][0]}-{proposal.groups[-1][1]} {proposal.size_bytes}B")
    return lines


GOLDENS: dict[str, tuple[Manifest, list[str]]] = {
    "nothing": (manifest(), []),
    "one": (sizes(10), []),
    "three alike": (sizes(10, 10, 10), []),
    "four alike": (sizes(10, 10, 10, 10), ["4+3+2+1 groups 0-16 40B"]),
    "a large old one is left alone": (sizes(10, 10, 10, 10, 900), ["5+4+3+2 groups 0-16 40B"]),
    "an old one as large as all newer joins": (sizes(10, 10, 10, 10, 40), ["5+4+3+2+1 groups 0-16 80B"]),
    "one beyond the newest": (sizes(1, 50, 50, 50, 50), ["4+3+2+1 groups 0-16 200B"]),
    "growing by doubling": (sizes(1, 2, 4, 8, 16), []),
    "growing and too many": (sizes(*(2**n for n in range(9)), 1, 2), ["11+10 groups 0-16 3B"]),
    "at most ten": (sizes(*(2**n for n in range(10))), []),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str) -> None:
    drawn, expected = GOLDENS[name]
    assert text(POLICY.propose(drawn)) == expected


def test_bands_split_by_powers_of_two_as_a_table_grows() -> None:
    assert bands(sizes(1000), "t", 1000) == [((0, 16),)]
    assert bands(sizes(1001), "t", 1000) == [((0, 8),), ((8, 16),)]
    assert len(bands(sizes(10**9), "t", 1000)) == 16, "never finer than a key group"
    assert bands(manifest(), "t", 1000) == [((0, 16),)]


def test_each_band_is_judged_by_itself() -> None:
    busy = [run(epoch, 200, ((0, 8),)) for epoch in range(1, 5)]
    quiet = run(5, 800, ((8, 16),))
    assert text(POLICY.propose(manifest(*busy, quiet))) == ["4+3+2+1 groups 0-8 800B"]


def test_the_runs_of_one_epoch_are_one_level() -> None:
    """Those of several slots are taken together or not at all."""
    slots = [run(epoch, 10, ((half, half + 8),)) for epoch in range(1, 4) for half in (0, 8)]
    assert POLICY.propose(manifest(*slots)) == []
    more = [run(4, 10, ((half, half + 8),)) for half in (0, 8)]
    assert text(POLICY.propose(manifest(*slots, *more))) == ["4+4+3+3+2+2+1+1 groups 0-16 80B"]


def test_full_takes_everything_that_is_not_settled() -> None:
    assert text(full(sizes(1, 900), 1000)) == ["2+1 groups 0-16 901B"]
    assert full(manifest(run(1, 10)), 1000) == []
    for trait in ({"deletes": True}, {"merges": True}, {"first_expiry_ms": 5}):
        settled = msgspec.structs.replace(manifest(run(1, 10, **trait)), watermarks={"processing_time": 5})
        assert text(full(settled, 1000)) == ["1 groups 0-16 10B"]
    assert full(msgspec.structs.replace(manifest(run(1, 10, first_expiry_ms=5)), watermarks={"processing_time": 4}), 1000) == []
    assert len(full(sizes(3000, 3000), 1000)) == 8


RUNS = st.lists(
    st.tuples(st.integers(1, 3000), st.sampled_from([((0, 16),), ((0, 8),), ((8, 16),), ((4, 8), (12, 16))])), max_size=16
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(RUNS, st.sampled_from([500, 1000, 10**9]))
def test_what_must_hold_for_any_manifest(drawn: list[tuple[int, GroupRanges]], step_bytes: int) -> None:
    whole = manifest(*(run(epoch, size, groups) for epoch, (size, groups) in enumerate(drawn, 1)))
    policy = TieredPolicy(step_bytes=step_bytes)
    taken: set[tuple[str, int]] = set()
    for proposal in policy.propose(whole):
        over = [ref for ref in whole.runs["t"] if intersect(ref.groups, proposal.groups)]
        assert len(proposal.runs) > 1
        first = over.index(proposal.runs[0])
        assert tuple(over[first : first + len(proposal.runs)]) == proposal.runs, "neighbours in recency, newest first"
        touched = {(ref.id, group) for ref in proposal.runs for low, high in proposal.groups for group in range(low, high)}
        assert not touched & taken
        taken |= touched
    for band in bands(whole, "t", step_bytes):
        if len([ref for ref in whole.runs["t"] if intersect(ref.groups, band)]) > policy.most_runs:
            assert any(proposal.groups == band for proposal in policy.propose(whole))
    assert policy.propose(whole) == policy.propose(whole)
