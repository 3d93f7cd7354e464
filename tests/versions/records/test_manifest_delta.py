"""A manifest and what changed since give exactly the later manifest, of any two."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.manifest import BrokenHistory, EpochMark, Manifest
from floodplain.versions.records.manifest_delta import ManifestDelta, delta, for_tasks, updated


def run(number: int, groups: tuple[tuple[int, int], ...] = ((0, 16),)) -> RunRef:
    return RunRef("runs/a", number, 10, 1, 0, 1000, "t", 1, number, number, groups, 1, 16, number)


POOL = [run(number) for number in range(12)]
"""Shared by manifests, as those of one fold share their runs."""
RUNS = st.lists(st.sampled_from(POOL), unique_by=lambda ref: ref.offset, max_size=12).map(tuple)
FRESH = RUNS.map(lambda refs: msgspec.msgpack.decode(msgspec.msgpack.encode(refs), type=tuple[RunRef, ...]))
NARROWED = RUNS.map(lambda refs: tuple(msgspec.structs.replace(ref, groups=((3, 5),)) for ref in refs))
TABLES = st.dictionaries(st.sampled_from(["t", "u", "v"]), RUNS | FRESH | NARROWED)
MANIFESTS = st.builds(
    lambda runs, **rest: Manifest("s", 16, runs=runs, **rest),
    TABLES,
    chain=st.sampled_from(["a", "b", "c"]),
    position=st.integers(0, 3),
    watermarks=st.dictionaries(st.sampled_from(["event", "processing"]), st.integers(0, 2)),
    outputs=st.just(()) | st.just(("output/a",)),
    epochs=st.lists(st.builds(EpochMark, st.integers(1, 3), st.just(1), st.just(1), st.just("x")), max_size=2).map(tuple),
)


def sent(value: Any, type_: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type_)


@given(MANIFESTS, MANIFESTS)
def test_a_manifest_and_a_delta_are_the_later_manifest(before: Manifest, after: Manifest) -> None:
    """Also where the receiver has a decoded copy of the earlier one."""
    change = sent(delta(before, after), ManifestDelta)
    assert updated(before, change) == after
    assert updated(sent(before, Manifest), change) == after


@given(MANIFESTS, MANIFESTS, MANIFESTS)
def test_a_delta_of_another_manifest_is_refused(before: Manifest, after: Manifest, other: Manifest) -> None:
    change = delta(before, after)
    if other.chain != before.chain:
        with pytest.raises(BrokenHistory):
            updated(other, change)


def test_the_bytes_of_a_delta_are_those_of_what_changed() -> None:
    """Counted with one run more, over few and over many that stay."""
    sizes = []
    for count in (10, 1000):
        runs = tuple(run(number) for number in range(1, count))
        before, after = Manifest("s", 16, chain="a", runs={"t": runs}), Manifest("s", 16, chain="b", runs={"t": (run(0), *runs)})
        sizes.append(len(msgspec.msgpack.encode(delta(before, after))))
    assert sizes[0] == sizes[1] < 300


def test_tasks_get_all_but_the_staged_output() -> None:
    manifest = Manifest("s", 16, outputs=("output/a",), runs={"t": tuple(POOL)}, watermarks={"event": 3})
    assert for_tasks(manifest) == msgspec.structs.replace(manifest, outputs=())
