"""The promises of ``Blobs``, asked of every back end alike."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pyarrow as pa
import pytest

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import AlreadyExists, FloodplainError, NotFound, Refused
from floodplain.metrics import TIER_READ_BYTES, TIER_REQUESTS, TIER_WRITTEN_BYTES, Counters
from floodplain.settings import RetrySettings
from floodplain.tiers.blobs import BlobInfo, Blobs
from floodplain.tiers.create import create_or_read
from floodplain.tiers.probe import probe

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "runs/../../x",
    "runs/./x",
    "runs//x",
    "runs/",
    "runs/x/",
    ".hidden",
    "runs/.hidden",
    "runs\\x",
    "runs/x\n",
    "runs/x\0y",
    "runs/é",
    "tmp/x",
    "runs/" + "x" * 300,
    "a/" * 20 + "x",
    "C:/x",
    "runs/%2e%2e/x",
]


@pytest.mark.parametrize("folder", ["log", "runs"])
class TestOneBlob:
    def test_create_then_get(self, blobs: Blobs, folder: str) -> None:
        blobs.create(f"{folder}/a", b"hello")
        assert blobs.get(f"{folder}/a").to_pybytes() == b"hello"
        assert blobs.get(f"{folder}/a").to_pybytes() == b"hello"
        assert blobs.size(f"{folder}/a") == 5

    def test_create_keeps_what_is_there(self, blobs: Blobs, folder: str) -> None:
        blobs.create(f"{folder}/a", b"first")
        with pytest.raises(AlreadyExists):
            blobs.create(f"{folder}/a", b"second")
        with pytest.raises(AlreadyExists):
            blobs.create(f"{folder}/a", b"first")
        assert blobs.get(f"{folder}/a").to_pybytes() == b"first"

    def test_put_replaces(self, blobs: Blobs, folder: str) -> None:
        blobs.put(f"{folder}/a", b"first and longer")
        assert blobs.get(f"{folder}/a").to_pybytes() == b"first and longer"
        assert blobs.get_ranges(f"{folder}/a", [(0, 5)])[0].to_pybytes() == b"first"
        blobs.put(f"{folder}/a", b"second")
        assert blobs.get(f"{folder}/a").to_pybytes() == b"second"
        assert blobs.get_ranges(f"{folder}/a", [(0, 5)])[0].to_pybytes() == b"secon"

    def test_missing(self, blobs: Blobs, folder: str) -> None:
        for ask in (blobs.get, blobs.size, lambda name: blobs.get_ranges(name, [(0, 1)])):
            with pytest.raises(NotFound):
                ask(f"{folder}/none")

    def test_deleted_is_missing_and_free_again(self, blobs: Blobs, folder: str) -> None:
        names = [f"{folder}/{n}" for n in range(3)]
        for name in names:
            blobs.create(name, b"old")
            blobs.get(name)
            blobs.get_ranges(name, [(1, 2)])
        blobs.delete([names[0], f"{folder}/never", names[2]])
        blobs.delete([])
        assert [info.name for info in blobs.list(f"{folder}/")] == [names[1]]
        for name in (names[0], names[2]):
            with pytest.raises(NotFound):
                blobs.get(name)
            with pytest.raises(NotFound):
                blobs.get_ranges(name, [(1, 2)])
        blobs.create(names[0], b"new")
        assert blobs.get(names[0]).to_pybytes() == b"new"

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1024], ids=len)
    @pytest.mark.parametrize("kind", [bytes, memoryview, pa.py_buffer])
    def test_all_kinds_of_data(self, blobs: Blobs, folder: str, data: bytes, kind: type) -> None:
        blobs.create(f"{folder}/a", kind(data))
        blobs.put(f"{folder}/b", kind(data))
        for name in (f"{folder}/a", f"{folder}/b"):
            assert blobs.get(name).to_pybytes() == data
            assert blobs.size(name) == len(data)
            mapped = blobs.map(name)
            assert mapped is None or mapped.to_pybytes() == data

    def test_ranges(self, blobs: Blobs, folder: str) -> None:
        data = bytes(range(200)) * 10_000
        blobs.create(f"{folder}/a", data)
        ranges = [(1_500_000, 7), (0, 3), (5, 0), (1, 4), (0, 3), (900_000, 400), (len(data) - 1, 1)]
        for _ in range(2):
            found = blobs.get_ranges(f"{folder}/a", ranges)
            assert [piece.to_pybytes() for piece in found] == [data[at : at + length] for at, length in ranges]
        assert blobs.get_ranges(f"{folder}/a", []) == []

    def test_ranges_past_the_end_are_short(self, blobs: Blobs, folder: str) -> None:
        blobs.create(f"{folder}/a", b"0123456789")
        blobs.create(f"{folder}/empty", b"")
        ranges = [(8, 5), (10, 1), (500_000_000, 3), (0, 2), (0, 1 << 40)]
        for _ in range(2):
            found = blobs.get_ranges(f"{folder}/a", ranges)
            assert [piece.to_pybytes() for piece in found] == [b"89", b"", b"", b"01", b"0123456789"]
            assert [piece.to_pybytes() for piece in blobs.get_ranges(f"{folder}/empty", [(0, 4), (9, 1)])] == [b"", b""]
        blobs.get(f"{folder}/a")
        found = blobs.get_ranges(f"{folder}/a", ranges)
        assert [piece.to_pybytes() for piece in found] == [b"89", b"", b"", b"01", b"0123456789"]

    def test_ranges_that_make_no_sense(self, blobs: Blobs, folder: str) -> None:
        blobs.create(f"{folder}/a", b"0123456789")
        for bad in ((-1, 2), (0, -1)):
            with pytest.raises(Refused):
                blobs.get_ranges(f"{folder}/a", [(0, 1), bad])


class TestListing:
    NAMES = ("format", "log/a", "log/b", "log/b-c", "log/b.d", "log/b2/x", "log/b_", "logs/z", "runs/q")

    @pytest.fixture
    def filled(self, blobs: Blobs) -> Blobs:
        for at, name in enumerate(reversed(self.NAMES)):
            blobs.create(name, b"." * at)
        return blobs

    @pytest.mark.parametrize("prefix", ["", "log", "log/", "log/b", "log/b2/", "none/", "log/a", "runs/q/"])
    @pytest.mark.parametrize("after", ["", "log/b", "log/b2", "log/b2/x", "log/zzz", "zzz"])
    def test_prefix_and_after(self, filled: Blobs, prefix: str, after: str) -> None:
        found = [info.name for info in filled.list(prefix, after)]
        assert found == sorted(name for name in self.NAMES if name.startswith(prefix) and name > after)

    def test_sizes(self, filled: Blobs) -> None:
        assert list(filled.list("log/b.")) == [BlobInfo("log/b.d", list(reversed(self.NAMES)).index("log/b.d"))]

    def test_nothing_there(self, blobs: Blobs) -> None:
        assert list(blobs.list("")) == []
        assert list(blobs.list("log/")) == []

    def test_a_blob_that_is_put_again_and_again_is_always_listed(self, blobs: Blobs) -> None:
        names = {f"pins/{n}" for n in range(8)}
        for name in names:
            blobs.put(name, b"0")
        done = Event()

        def renew() -> None:
            at = 0
            while not done.is_set():
                at += 1
                for name in sorted(names):
                    blobs.put(name, b"%d" % at)

        with ThreadPoolExecutor(1) as pool:
            renewing = pool.submit(renew)
            try:
                for _ in range(25):
                    assert {info.name for info in blobs.list("pins/")} == names
            finally:
                done.set()
            renewing.result()


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_are_refused(blobs: Blobs, name: str) -> None:
    asks = [
        lambda: blobs.create(name, b"x"),
        lambda: blobs.put(name, b"x"),
        lambda: blobs.get(name),
        lambda: blobs.get_ranges(name, [(0, 1)]),
        lambda: blobs.map(name),
        lambda: blobs.size(name),
        lambda: blobs.delete([name]),
    ]
    for ask in asks:
        with pytest.raises(Refused):
            ask()


@pytest.mark.parametrize("prefix", ["/", "../", "runs/../../", "runs//", "x\0"])
def test_hostile_prefixes_are_refused(blobs: Blobs, prefix: str) -> None:
    with pytest.raises(Refused):
        list(blobs.list(prefix))


def test_racing_creates_have_one_winner(blobs: Blobs, request: pytest.FixtureRequest) -> None:
    remote = "s3" in request.node.callspec.id
    racers, rounds = (2, 4) if remote else (8, 10)
    start = Barrier(racers)

    def race(round_: int, racer: int) -> bool:
        start.wait()
        try:
            blobs.create(f"log/{round_}", b"%d" % racer * 1000)
        except FloodplainError:
            return False
        return True

    with ThreadPoolExecutor(racers) as pool:
        for round_ in range(rounds):
            won = [*pool.map(race, [round_] * racers, range(racers))]
            assert won.count(True) == 1
            assert blobs.get(f"log/{round_}").to_pybytes() == b"%d" % won.index(True) * 1000


def test_racing_callers_of_create_or_read_agree(blobs: Blobs) -> None:
    racers = 3
    start = Barrier(racers)

    def race(racer: int) -> bytes:
        start.wait()
        found = create_or_read(blobs, "log/1", b"%d" % racer, RetrySettings(), SystemClock(), SystemRandomness())
        return b"%d" % racer if found is None else found.to_pybytes()

    with ThreadPoolExecutor(racers) as pool:
        assert len(set(pool.map(race, range(racers)))) == 1


def test_probe_accepts_and_cleans_up(blobs: Blobs) -> None:
    probe(blobs, SystemClock(), SystemRandomness())
    assert list(blobs.list("")) == []


def test_requests_and_bytes_are_counted(blobs: Blobs, counters: Counters) -> None:
    blobs.create("log/a", b"12345")
    blobs.get("log/a")
    blobs.get_ranges("log/a", [(0, 2)])
    base = "object" if "object" in counters.snapshot() else "directory" if "directory" in counters.snapshot() else "memory"
    assert counters.get(TIER_WRITTEN_BYTES, base) == 5
    assert counters.get(TIER_READ_BYTES, base) == 7
    assert counters.get(TIER_REQUESTS, base) == 3


def test_the_time_of_a_blob_is_by_the_clock_of_its_place(blobs: Blobs) -> None:
    blobs.put("log/a", b"1")
    first_ms = blobs.modified_ms("log/a")
    if blobs.tier == "memory":
        assert first_ms is None, "there is no clock but ours"
        return
    blobs.put("log/a", b"2")
    second_ms = blobs.modified_ms("log/a")
    assert first_ms is not None and second_ms is not None and second_ms >= first_ms > 1_600_000_000_000
    with pytest.raises(NotFound):
        blobs.modified_ms("log/b")
