"""What a steady epoch asks of an object store: how many requests of which kind, and no listing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.metrics import Counters
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Input, Outlet, Plan
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.runtime.store_upkeep import COLLECT_EPOCHS, StoreUpkeep
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.sinks.files import ParquetSink
from floodplain.store.store import Store
from floodplain.testing.local_engine import LocalEngine
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.log.fences import SEGMENT
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import SourcePosition
from tests.processes import Count

ROWS, SLOTS, WARM_UP = 100, 2, 20
COLUMNS = pa.schema([("user", pa.string()), ("amount", pa.int64())])


class Remote(MemoryBlobs):
    """An object store: nothing is mapped, and requests are counted as its bill would."""

    tier = "object"

    def __init__(self, name: str) -> None:
        super().__init__(f"memory://{name}", Counters())
        self.requests: Counter[str] = Counter()
        self.names: list[tuple[str, str]] = []

    def _count(self, kind: str, name: str, requests: int = 1) -> None:
        self.requests[kind] += requests
        self.names.append((kind, name))

    def create(self, name: str, data: Writable) -> None:
        self._count("PUT", name)
        super().create(name, data)

    def put(self, name: str, data: Data) -> None:
        self._count("PUT", name)
        super().put(name, data)

    def get(self, name: str) -> pa.Buffer:
        self._count("GET", name)
        return super().get(name)

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        self._count("GET", name, len(ranges))
        return super().get_ranges(name, ranges)

    def map(self, name: str) -> None:
        return None

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        self._count("LIST", prefix)
        return super().list(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._count("DELETE", name)
            super().delete([name])

    def size(self, name: str) -> int:
        self._count("HEAD", name)
        return super().size(name)

    def modified_ms(self, name: str) -> int | None:
        self._count("HEAD", name)
        return super().modified_ms(name)


class Described:
    """The input where the pipeline is described."""

    schema, columns, sparkSession = COLUMNS, COLUMNS.names, None  # noqa: N815 — as Spark calls it


class Query:
    """A driver without Spark, with upkeep between its epochs."""

    def __init__(self, folder: Path) -> None:
        self.state, self.output, self.clock = Remote("state"), Remote("out"), ManualClock(1_000_000)
        settings = StoreSettings(key_groups=16)
        cache = CacheSettings(str(folder / "cache"), 64 << 20)
        blobs: Blobs = CachedBlobs(self.state, cache, clock=self.clock, counters=Counters())
        history = History.create(blobs, 16, settings=settings, clock=self.clock, randomness=SeededRandomness(5))
        store = Store(history, Counters())
        self.writer = store.writer("one")
        output = Stream(None, {"": Described()}, Input(), {}).key_by("user").process(Count(), name="counts").write("memory")
        sink = ParquetSink("memory://out")
        sink._files._target = self.output
        (outlet,) = output.outlets
        plan = Plan([Outlet(outlet.name, outlet.node, sink)], None, None)
        place = StateLocation(store, self.writer, "memory://state", settings, {}, blobs)
        self.epochs = EpochRunner(place, plan, LocalEngine([], plan), SLOTS, deferred=True)
        self.epochs.prepare({"": COLUMNS.empty_table()})
        self.upkeep = StoreUpkeep(store, self.epochs.publisher.delete_discarded)
        self.number = 0

    def epoch(self) -> None:
        """Rows of a hundred users of a thousand."""
        users = [f"u{(self.number * 37 + i * 11) % 1000}" for i in range(ROWS)]
        rows = pa.table({"user": users, "amount": range(ROWS)}, schema=COLUMNS)
        self.clock.advance_ms(1000)
        self.epochs.run({"": rows}, SourcePosition("q", self.number, str(self.number)), self.clock.now_ms(), 0)
        self.number += 1


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path)
    for _ in range(WARM_UP):
        query.epoch()
        query.upkeep.round()
    query.state.requests.clear()
    query.output.requests.clear()
    query.state.names.clear()
    return query


def asked(remote: Remote) -> Counter[tuple[str, str]]:
    """By kind, and the folder of what was asked for."""
    return Counter((kind, name.partition("/")[0]) for kind, name in remote.names)


def test_a_steady_epoch_lists_nothing(query: Query) -> None:
    for _ in range(COLLECT_EPOCHS):
        query.epoch()
    of_state = asked(query.state)
    checkpoints = of_state.pop(("PUT", "manifest")), of_state.pop(("GET", "manifest"))
    assert max(checkpoints) <= 2
    del of_state["GET", "runs"]
    assert {key: count / COLLECT_EPOCHS for key, count in of_state.items()} == {
        ("PUT", "runs"): 1,
        ("PUT", "staged"): SLOTS,
        ("PUT", "log"): 1,
        ("GET", "fence"): 1,
        ("GET", "log"): 1,
        ("GET", "staged"): SLOTS,
    }
    assert query.output.requests == {"PUT": SLOTS * COLLECT_EPOCHS}


def test_background_work_lists_once_in_a_hundred_epochs(query: Query) -> None:
    hundreds = 4
    for _ in range(hundreds * COLLECT_EPOCHS):
        query.epoch()
        query.upkeep.round()
    assert 1 <= query.state.requests["LIST"] <= hundreds
    assert query.upkeep.concern is None
    assert not [name for kind, name in query.state.names if kind == "LIST" and name]
    left = Counter(info.name.partition("/")[0] for info in query.state.list(""))
    assert left["staged"] <= 2 * SLOTS
    assert left["log"] < 2 * SEGMENT
