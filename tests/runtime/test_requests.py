"""What a steady epoch asks of an object store: how many requests of which kind, and no listing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Corrupt, Refused
from floodplain.metrics import Counters
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Input, Outlet, Plan
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.runtime.staging import MOST_INLINE_BYTES, StagedFile, fitted_to_edit
from floodplain.runtime.store_upkeep import COLLECT_EPOCHS, StoreUpkeep
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.sinks.files import ParquetSink
from floodplain.store.store import Store
from floodplain.testing.local_engine import LocalEngine
from floodplain.tiers import paths
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.log.commit import commit
from floodplain.versions.log.fences import SEGMENT
from floodplain.versions.log.history import History
from floodplain.versions.log.inline_output import inline_outputs
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.records.edit import DropTag, SourcePosition
from floodplain.versions.records.vouched import FileSum
from tests.processes import Count

ROWS, SLOTS, WARM_UP = 100, 2, 20
COLUMNS = pa.schema([("user", pa.string()), ("amount", pa.int64())])


class Remote(MemoryBlobs):
    """An object store: nothing is mapped, and requests are counted as its bill would."""

    tier = "object"

    def __init__(self, name: str) -> None:
        super().__init__(f"memory://{name}", Counters())
        self.broken = False
        self.requests: Counter[str] = Counter()
        self.names: list[tuple[str, str]] = []

    def _count(self, kind: str, name: str, requests: int = 1) -> None:
        self.requests[kind] += requests
        self.names.append((kind, name))

    def create(self, name: str, data: Writable) -> None:
        self._count("PUT", name)
        super().create(name, data)

    def put(self, name: str, data: Data) -> None:
        if self.broken:
            raise Refused("no space")
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
        self.folder, self.number = folder, 0
        self.state, self.output, self.clock = Remote("state"), Remote("out"), ManualClock(1_000_000)
        self._start()

    def restarted(self) -> "Query":
        """Another driver has taken over, and the output can be written to again."""
        self.output.broken = False
        self._start()
        return self

    def _start(self) -> None:
        settings = StoreSettings(key_groups=16)
        cache = CacheSettings(str(self.folder / "cache"), 64 << 20)
        blobs: Blobs = CachedBlobs(self.state, cache, clock=self.clock, counters=Counters())
        history = History.create(blobs, 16, settings=settings, clock=self.clock, randomness=SeededRandomness(self.number))
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


def test_a_steady_epoch_asks_for_little_and_lists_nothing(query: Query) -> None:
    for _ in range(COLLECT_EPOCHS):
        query.epoch()
    of_state = asked(query.state)
    of_state.pop(("GET", "runs"), None)
    assert of_state == dict.fromkeys([("PUT", "log"), ("GET", "fence"), ("GET", "log"), ("PUT", "runs")], COLLECT_EPOCHS)
    assert query.output.requests == {"PUT": COLLECT_EPOCHS}


def test_each_epoch_is_published_as_one_file_with_all_of_its_rows(query: Query) -> None:
    for _ in range(3):
        query.epoch()
    files = [info.name for info in query.output.list("")]
    assert len(files) == query.number
    totals: Counter[str] = Counter()
    for name in files:
        rows = pq.read_table(pa.BufferReader(query.output.get(name))).to_pylist()
        totals.update({row["user"]: 1 for row in rows})
        assert all(row["n"] == totals[row["user"]] for row in rows)
    assert totals.total() == query.number * ROWS


def test_output_in_an_edit_that_is_not_published_outlives_any_trimming(query: Query) -> None:
    place, count = query.epochs.publisher.store, query.number
    query.output.broken = True
    with pytest.raises(Refused):
        query.epoch()
    query.epochs.publisher.close_sinks()
    query.writer.close()
    head = place.history.refresh()
    assert head.inline == head.outputs
    assert head.published == head.epoch - 1
    for _ in range(2 * SEGMENT):
        commit(place.history, [DropTag("x")])
        maybe_checkpoint(place.history)
    for _ in range(3):
        place.collect_garbage()
    assert not [name for kind, name in query.state.names if kind == "PUT" and name.startswith(paths.STAGED)]
    again = query.restarted()
    assert len([*again.output.list("")]) == count + 1
    for _ in range(2):
        place.history.refresh()
        place.collect_garbage()
    assert not [*again.state.list(paths.log(head.epochs[-1].position))]


def test_output_in_a_damaged_edit_is_not_published(query: Query) -> None:
    query.output.broken = True
    with pytest.raises(Refused):
        query.epoch()
    query.writer.close()
    head = query.writer.store.head
    name = paths.log(head.epochs[-1].position)
    assert inline_outputs(query.state, head).keys() == set(head.outputs)
    query.state.put(name, query.state.get(paths.log(head.epochs[-2].position)))
    with pytest.raises(Corrupt, match=f"{name}.*checksum {head.epochs[-1].chain}"):
        inline_outputs(query.state, head)
    query.state.delete([name])
    with pytest.raises(Corrupt, match=f"{name}.*the output of epoch {head.epoch}"):
        inline_outputs(query.state, head)


def of_size(number: int, size: int) -> StagedFile:
    data = bytes([number]) * size
    return StagedFile(f"staged/{number:020}-1-2-a-op-main-{number}.parquet", 1, FileSum.of(data), data=data)


@pytest.mark.parametrize("sizes", [[], [10], [100_000] * 5, [MOST_INLINE_BYTES + 1, 5], [MOST_INLINE_BYTES, 1]])
def test_an_edit_holds_so_much_output_and_no_more(query: Query, sizes: list[int]) -> None:
    files = [of_size(number, size) for number, size in enumerate(sizes)]
    fitted = fitted_to_edit(files, query.writer.store.history)
    assert sorted(file.name for file in fitted) == [file.name for file in files]
    inline = [file for file in fitted if file.data]
    assert sum(len(file.data) for file in inline) <= MOST_INLINE_BYTES
    assert len(inline) == len(sizes) or sum(sizes) > MOST_INLINE_BYTES
    for file in fitted:
        data = file.data or query.state.get(file.name)
        assert FileSum.of(data) == file.sum


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
