"""Thousands of slots: what a commit and its upkeep do per run must not depend on how many runs there are."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.store.compaction.policy import TieredPolicy, full
from floodplain.store.run.run_index import RunIndex
from floodplain.store.write.epoch import _check_disjoint
from floodplain.versions.log.requirements import RequireRuns
from floodplain.versions.records.assignment import even, groups_of
from floodplain.versions.records.edit import CommitEpoch, Edit, PutSchema, ReplaceRuns, RunRef, Update
from floodplain.versions.records.groups import from_mask, from_members, intersect
from floodplain.versions.records.manifest import Manifest, apply
from floodplain.versions.records.schema import Field, TableSchema, type_to_bytes

LEVELS = 5
LONG = type_to_bytes(pa.int64())
SCHEMA = TableSchema("t", 1, "value", (Field(1, "k", LONG),), (), (Field(2, "v", LONG),), 3)


def steps(work: Callable[[], object]) -> int:
    """Calls and lines of Python, and calls into C, that the work takes: the same on any machine."""
    count = 0

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += 1

    tracing, profiling = sys.gettrace(), sys.getprofile()
    sys.setprofile(call)
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
    return count


def runs_of(epoch: int, slots: int) -> tuple[RunRef, ...]:
    """One of each slot, in one object: as small deltas come."""
    groups = groups_of(even(slots, slots * 2, 1), slots * 2)
    return tuple(
        RunRef(
            object=f"runs/0000000000000001/1-{epoch}-n/small",
            offset=100 * slot,
            length=100,
            footer_length=10,
            footer_checksum=slot,
            object_size=100 * slots,
            table="t",
            schema_id=1,
            low=epoch,
            high=epoch,
            groups=groups[slot],
            rows=1,
            written_groups=2,
            added=epoch,
        )
        for slot in range(slots)
    )


def folded(manifest: Manifest, *updates: Update) -> Manifest:
    edit = Edit(manifest.store, manifest.position + 1, manifest.chain, "n", 0, 0, updates)
    return apply(manifest, edit, f"chain {edit.position}")


def state(slots: int, levels: int = LEVELS) -> Manifest:
    manifest = folded(Manifest("s", 2 * slots), PutSchema(SCHEMA))
    for epoch in range(1, levels + 1):
        manifest = folded(manifest, CommitEpoch(epoch, runs_of(epoch, slots)))
    return manifest


def commit_of(slots: int) -> Callable[[], object]:
    before, runs = state(slots), runs_of(LEVELS + 1, slots)
    return lambda: folded(before, CommitEpoch(LEVELS + 1, runs))


def replacement_of(slots: int) -> Callable[[], object]:
    before = state(slots)
    return lambda: folded(before, ReplaceRuns("t", ((0, 2 * slots),), tuple(run.id for run in before.runs["t"]), ()))


def requirements_of(slots: int) -> Callable[[], object]:
    before = state(slots)
    needed = RequireRuns.of(before.runs["t"], ((0, 2 * slots),))
    return lambda: [each.check(before) for each in needed]


def policy_of(slots: int) -> Callable[[], object]:
    """As many bands as slots."""
    before = state(slots, 12)
    return lambda: TieredPolicy(step_bytes=100).propose(before)


def full_of(slots: int) -> Callable[[], object]:
    before = state(slots)
    return lambda: full(before, 100)


def disjoint_of(slots: int) -> Callable[[], object]:
    return lambda: _check_disjoint(runs_of(1, slots), 1)


def index_of(slots: int) -> Callable[[], object]:
    """Every slot asks for its runs."""
    index = RunIndex(state(slots).runs["t"], 2 * slots)
    groups = groups_of(even(slots, slots * 2, 1), slots * 2)
    return lambda: [index.over_ranges(of_slot) for of_slot in groups]


@pytest.mark.parametrize("work", [commit_of, replacement_of, requirements_of, policy_of, full_of, disjoint_of, index_of])
def test_steps_per_slot_do_not_grow_with_the_slots(work: Callable[[int], Callable[[], object]]) -> None:
    few, many = steps(work(64)), steps(work(256))
    assert many <= 4.4 * few, f"{few} steps with 64 slots, {many} with 256"


RANGES = st.lists(st.integers(0, 63), unique=True, max_size=20).map(lambda groups: from_members(groups) or ((0, 64),))


@given(st.lists(RANGES, max_size=30), RANGES)
def test_an_index_finds_the_runs_that_a_look_at_each_finds(groups: list[Any], wanted: Any) -> None:
    pattern = runs_of(1, 1)[0]
    runs = tuple(RunRef(**{**fields(pattern), "groups": each, "offset": n}) for n, each in enumerate(groups))
    assert RunIndex(runs, 64).over_ranges(wanted) == [run for run in runs if intersect(run.groups, wanted)]


@pytest.mark.parametrize("groups", [((0, 65),), ((-1, 3),), ((5, 5),), ((0, 1), (9, 1 << 60))])
def test_a_run_with_impossible_key_groups_is_handed_to_who_checks_it(groups: Any) -> None:
    sound, wrong = (RunRef(**{**fields(runs_of(1, 1)[0]), "groups": each}) for each in (((0, 64),), groups))
    assert RunIndex((sound, wrong), 64).over_ranges(((30, 31),)) == [sound, wrong]


@given(st.sets(st.integers(0, 63)))
def test_a_mask_of_key_groups_is_their_ranges(groups: set[int]) -> None:
    mask = np.zeros(64, bool)
    mask[list(groups)] = True
    assert from_mask(mask) == from_members(groups)


@given(st.lists(st.lists(RANGES, min_size=1, max_size=2), min_size=1, max_size=4))
def test_runs_that_share_a_key_group_are_refused(tasks: list[list[Any]]) -> None:
    """Ranges of one run may be anything; two runs of a table may not overlap."""
    pattern = fields(runs_of(1, 1)[0])
    runs = [
        RunRef(**{**pattern, "table": f"t{table}", "groups": groups, "offset": number})
        for number, tables in enumerate(tasks)
        for table, groups in enumerate(tables)
    ]
    pairs = [(one, other) for one in runs for other in runs if one.table == other.table and one.id < other.id]
    if any(intersect(one.groups, other.groups) for one, other in pairs):
        with pytest.raises(BadInput, match="two tasks wrote key group"):
            _check_disjoint(runs, 1)
    else:
        _check_disjoint(runs, 1)


def fields(run: RunRef) -> dict[str, Any]:
    return {name: getattr(run, name) for name in run.__struct_fields__}
