"""Each sink by itself, on files that the log vouches for: it checks the very bytes that it uses, whoever did so before."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodplain.errors import Corrupt
from floodplain.tiers.blobs import Blobs
from floodplain.versions.records import vouched
from floodplain.versions.records.vouched import FileSum, Vouched
from tests.sinks.staged_damage import Unconnected, damages, worlds
from tests.sinks.staging import APP, local_blobs, memory_blobs, stage

ROWS = pa.table({"kind": ["a", "b"] * 50, "n": list(range(100))})
PLACES = {"directory": local_blobs, "objects": lambda _: memory_blobs()}


@pytest.fixture(params=PLACES)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return PLACES[request.param](tmp_path / "state")


def vouching(blobs: Blobs, names: list[str]) -> Vouched:
    return Vouched(blobs, {name: FileSum.of(blobs.get(name)) for name in names}, 0)


@pytest.mark.parametrize("name", ["parquet", "parted", "delta", "memory", "foreach_batch"])
def test_no_damaged_file_is_published_by_a_sink_alone(tmp_path, blobs, name):
    world = worlds(tmp_path)[name]
    world.sink.prepare(APP, 0, ROWS.schema)
    (staged,) = stage(blobs, 1, ROWS)
    sums, whole = {staged: FileSum.of(blobs.get(staged))}, blobs.get(staged).to_pybytes()
    for what, data in list(damages(whole, 3))[::5]:
        blobs.put(staged, data)
        with pytest.raises(Corrupt, match=f"{staged} is damaged"):
            world.sink.publish(1, [staged], Vouched(blobs, sums, 0), ROWS.schema)
        assert world.seen() == [], what


def test_a_transaction_with_records_of_a_damaged_file_is_aborted_before_the_first_of_them(blobs):
    sink = Unconnected()
    sink.prepare(APP, 0, ROWS.schema)
    names = sorted(stage(blobs, 1, ROWS, ROWS.slice(0, 7)))
    checked, whole = vouching(blobs, names), blobs.get(names[1]).to_pybytes()
    for what, data in list(damages(whole, 4))[::5]:
        blobs.put(names[1], data)
        with pytest.raises(Corrupt, match=f"{names[1]} is damaged"):
            sink.publish(1, names, checked, ROWS.schema)
        assert sink.client.calls == ["begin", *["produce"] * len(ROWS), "abort"], what
        sink.client.calls.clear()
    blobs.put(names[1], whole)
    sink.publish(1, names, checked, ROWS.schema)
    assert sink.client.calls == ["begin", *["produce"] * (len(ROWS) + 7 + 1), "commit"]


def test_bytes_that_were_checked_are_those_that_are_given_out(blobs):
    names = stage(blobs, 1, ROWS, ROWS.slice(0, 7))
    whole, checked = {name: blobs.get(name).to_pybytes() for name in names}, vouching(blobs, names)
    checked.check_all()
    for name in names:
        blobs.put(name, b"something else")
    assert {name: checked.get(name).to_pybytes() for name in names} == whole
    assert checked.get_ranges(names[0], [(0, 4), (4, 1 << 20)]) == [b"PAR1", whole[names[0]][4:]]
    assert (checked.map(names[0]) is None) == (blobs.map(names[0]) is None)


def test_what_was_not_kept_is_checked_again(monkeypatch):
    """Files beyond the room for them are read twice; the second time they may be others."""
    blobs = memory_blobs()
    names = stage(blobs, 1, ROWS, ROWS.slice(0, 7))
    checked = vouching(blobs, names)
    monkeypatch.setattr(vouched, "HELD_BYTES", blobs.size(names[0]))
    checked.check_all()
    for name in names:
        blobs.put(name, b"something else")
    results = [_told(partial(checked.get, name)) for name in names]
    assert sorted(results) == ["damaged", "whole"]


def _told(read: Any) -> str:
    try:
        read()
    except Corrupt:
        return "damaged"
    return "whole"


def test_a_copy_that_was_damaged_in_a_cache_is_fetched_again():
    class Cached(type(memory_blobs())):  # type: ignore[misc]
        """Gives out what it holds until it is told to forget it."""

        held = b"damaged on its way"

        def get(self, name: str) -> pa.Buffer:
            return pa.py_buffer(self.held) if self.held else super().get(name)

        def forget(self, names: Any) -> None:
            self.held = b""

    blobs = memory_blobs()
    blobs.__class__ = Cached
    blobs.put("x", b"whole")
    assert Vouched(blobs, {"x": FileSum.of(b"whole")}, 0).get("x").to_pybytes() == b"whole"
