"""States of all formats that ever were: each is opened, read and gone on with, for good."""

import logging
import struct
from pathlib import Path

import pytest
import xxhash

import floodplain as fp
from floodplain.errors import IncompatibleChange, NewerFormat
from floodplain.runtime.compatibility.migration import StartChanges
from floodplain.store.store import Store
from floodplain.versions.records.frame import VERSION
from tests.formats.small_state import BATCHES, Running, archive, content, holds, make, unpacked

OTHERS = ("visits", "slides", "visit", "threes", "running", "firsts", "best", "latest", "wide", "pairs")
VERSIONS = range(1, VERSION + 1)


def test_each_format_is_kept():
    assert [version for version in VERSIONS if not archive(version).exists()] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_each_format_is_read_as_it_was_written(version):
    with unpacked(version) as location:
        assert content(location) == holds(version)
        store = Store.open(location)
        assert store.verify().good
        assert [mark.epoch for mark in store.head.epochs] == list(range(1, BATCHES + 1))
        assert len(store.at(epoch=1).table("running").to_arrow()) == 2
        assert list(store.compact(full=True))
        assert content(location) == holds(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_format_goes_on_as_one_that_was_made_today(version, tmp_path):
    make(tmp_path / "state")
    with unpacked(version) as location:
        today, kept = (given(place) for place in (tmp_path / "state", location))
    assert today.keys() == kept.keys()
    assert [name for name in today if today[name] != kept[name]] == []
    assert [name for name, rows in today.items() if not any(rows)] == []


def given(location: Path) -> dict[str, list[list[str]]]:
    """What each operator gives in the epochs that come next, the last of them long after."""
    running = Running(location)
    for number in (BATCHES, BATCHES + 1, BATCHES + 40):
        running.batch(number)
    epochs = range(running.store.head.epoch - 2, running.store.head.epoch + 1)
    found = {
        name: [sorted(map(repr, sink.epochs[epoch].to_pylist())) for epoch in epochs] for name, sink in running.sinks.items()
    }
    running.close()
    return found


def test_a_state_without_definitions_adopts_the_first_with_one_warning(caplog):
    with unpacked(1) as location:
        with caplog.at_level(logging.WARNING):
            Running(location).close()
        assert len([record for record in caplog.records if "did not record what operators do" in record.message]) == 1
        caplog.clear()
        Running(location).close()
        assert caplog.records == []

        def changed(stream):
            rows = stream.watermark("ts", "1 minute").key_by("user")
            return rows.window(fp.tumbling("1 minute"), lateness="5 minutes").agg(
                name="hot", n=fp.count(), total=fp.sum("v"), mean=fp.avg("v")
            )

        with pytest.raises(IncompatibleChange, match="operator hot, windows: was tumbling windows of 10 min, is tumbling"):
            Running(location, lambda stream: changed(stream).write("memory"), changes=StartChanges(drop=OTHERS))


def test_a_state_of_a_newer_release_is_refused_as_that(tmp_path):
    location = tmp_path / "state"
    make(location)
    log = sorted((location / "log").iterdir())[-1]
    data = bytearray(log.read_bytes())
    struct.pack_into(">B", data, 5, VERSION + 1)
    body = bytes(data[:-16])
    log.chmod(0o600)
    log.write_bytes(body + xxhash.xxh3_128_digest(body))
    with pytest.raises(NewerFormat, match=rf"{log.name}.*newer release"):
        Store.open(location)
