import os
import uuid
from pathlib import Path

import pytest

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import BadInput, Refused, UnsafeStore
from floodplain.metrics import TIER_WRITTEN_BYTES, Counters
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.sinks.files import LocalFiles, open_files
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.open import folder_of, open_blobs


def opened(location: str | os.PathLike[str], settings: StoreSettings | None = None, counters: Counters | None = None) -> Blobs:
    return open_blobs(
        location, settings or StoreSettings(), clock=SystemClock(), randomness=SystemRandomness(), counters=counters or Counters()
    )


def test_all_ways_to_name_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a b%"
    monkeypatch.chdir(tmp_path)
    opened(place).create("log/1", b"x")
    for location in (str(place), "a b%", place.as_uri(), place.as_uri().replace("file://", "file://localhost"), f"{place}/"):
        blobs = opened(location)
        assert blobs.get("log/1").to_pybytes() == b"x"
        assert blobs.url == place.as_uri()
        assert blobs.tier == "directory"


ODD = [
    "a b",
    "50%",
    "a%20b",
    "%2e%2e",
    "a#b",
    "a?b",
    "a&b=c",
    "é",
    "a+b",
    "~",
    "~x",
    "{a}",
    "[a]",
    "*",
    "a'b",
    'a"b',
    "a\\b",
    "a:b",
    "-a",
    "file:",
]


@pytest.mark.parametrize("name", ODD)
def test_a_path_is_taken_as_it_is_and_a_file_url_is_unescaped(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / name
    escaped = place.as_uri()
    monkeypatch.chdir(tmp_path)
    opened(place).create("log/1", b"x")
    assert [found.name for found in tmp_path.iterdir()] == [name]
    ways = [str(place), f"{place}/", f"{place}//", f"./{name}", escaped, f"{escaped}/", f"FILE:{escaped.removeprefix('file:')}"]
    ways += [escaped.replace("file://", "file://localhost"), escaped.replace("file:///", "file:/")]
    for location in ways:
        assert opened(location).get("log/1").to_pybytes() == b"x", location
        assert folder_of(location) == place
        sink = open_files(location, None)
        assert isinstance(sink, LocalFiles)
        assert sink.root == place
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    for location, place in {"~/a b%": "a b%", "~/x/": "x", "~": "."}.items():
        assert folder_of(location) == tmp_path / place
        opened(location).put("log/1", b"x")
        assert (tmp_path / place / "log" / "1").read_bytes() == b"x"
    assert folder_of("~nobody_of_this_name/x") == Path("/~nobody_of_this_name/x")
    assert folder_of("/srv/~/x") == Path("/srv/~/x")
    assert folder_of("file:///~/x") == Path("/~/x")


def test_opening_a_directory_makes_nothing(tmp_path: Path) -> None:
    blobs = opened(tmp_path / "none")
    assert list(blobs.list("")) == []
    assert not (tmp_path / "none").exists()


def test_memory_is_shared_by_name() -> None:
    name = uuid.uuid4().hex
    counters = [Counters(), Counters()]
    opened(f"memory://{name}", counters=counters[0]).create("log/1", b"abc")
    assert opened(f"memory://{name}/", counters=counters[1]).get("log/1").to_pybytes() == b"abc"
    assert list(opened(f"memory://{name}2").list("")) == []
    assert [each.get(TIER_WRITTEN_BYTES, "memory") for each in counters] == [3, 0]


@pytest.mark.parametrize("location", ["http://x/y", "hdfs://x/y", "s4://x", "://x"])
def test_unknown_schemes_name_the_known_ones(location: str) -> None:
    with pytest.raises(BadInput, match=r"file://, memory://, s3://, gs:// or az://"):
        opened(location)


@pytest.mark.parametrize("location", ["", "file://host/x", "file://x", "file:///a#b", "file:///a?b", "file:///a%00b", "a\0b"])
def test_locations_that_make_no_sense(location: str) -> None:
    with pytest.raises(BadInput):
        opened(location)


def test_object_stores_get_their_caches(tmp_path: Path) -> None:
    cache = CacheSettings(str(tmp_path / "cache"), 1 << 20)
    for location in ("s3://bucket/x", "gs://bucket/x"):
        assert opened(location).tier == "object"
        blobs = opened(location, StoreSettings(cache=cache))
        assert isinstance(blobs, CachedBlobs)
        assert (blobs.tier, blobs.url) == ("disk", location)
        assert opened(location, StoreSettings(cache=cache, tmpfs=cache)).tier == "tmpfs"


def test_a_cache_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UnsafeStore):
        opened("s3://bucket/x", StoreSettings(tmpfs=CacheSettings(str(tmp_path), 1 << 60)))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Refused):
        opened("s3://bucket/x", StoreSettings(cache=CacheSettings(str(tmp_path / "file"), 1 << 20)))
