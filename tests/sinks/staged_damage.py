"""Ways in which a staged file can be damaged, and drivers that meet them between the commit of an epoch and its publishing."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodplain.clock import ManualClock, SystemRandomness
from floodplain.metrics import Counters
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Input, Outlet, Plan
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.settings import StoreSettings
from floodplain.sinks.base import Sink
from floodplain.sinks.delta import DeltaSink
from floodplain.sinks.files import ParquetSink
from floodplain.sinks.kafka import KafkaSink
from floodplain.sinks.kafka_marker import Marker
from floodplain.sinks.memory import MemorySink
from floodplain.spark.foreach_batch import ForeachBatchSink
from floodplain.store.store import Store
from floodplain.testing.local_engine import LocalEngine
from floodplain.testing.pipeline_kit import Columns
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import SourcePosition

ROWS = pa.schema({"user": pa.string(), "amount": pa.int64()})
GIVEN = pa.table({"user": [f"user{n % 40}" for n in range(200)], "amount": list(range(200))}, schema=ROWS)
FLIPS = 48
ENDS = 12
"""Bytes at both ends of a file in each of which a bit is flipped: those that say what and how long it is are among them."""


class Named(KeyedProcess):
    """Rows of all kinds of columns: dictionary encoded, plain, of any length, nested, null."""

    output = "user string, kind string, n long, f double, many array<int>"

    def process(self, key, rows, ctx):
        for n in (row.amount for row in rows):
            yield key.user, f"kind{n % 3}", n * 7919, None if n % 5 else n / 7, [n] * 2


def damages(data: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """What was done, and what became of the file: bits flipped in all parts of it, ends missing, more than there should be."""
    rng = random.Random(seed)
    stretches = [len(data) * n // FLIPS for n in range(FLIPS + 1)]
    inside = [rng.randrange(low, high) for low, high in pairwise(stretches)]
    for at in sorted({*range(ENDS), *inside, *range(len(data) - ENDS, len(data))}):
        bit = rng.randrange(8)
        yield f"bit {bit} of byte {at} flipped", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    for size in sorted({0, 1, 4, 8, len(data) - 1, len(data) - 8, *(rng.randrange(len(data)) for _ in range(8))}):
        yield f"cut to {size} bytes", data[:size]
    yield "a byte too many", data + b"\0"
    yield "all zeros", bytes(len(data))


class Gate(Sink):
    """A sink that can be closed: publishing fails, as it does where a driver dies before it."""

    def __init__(self, inner: Sink) -> None:
        self.inner, self.closed = inner, False

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self.inner.prepare(app, committed, schema)

    def publish(self, epoch: int, staged: Any, blobs: Blobs, schema: pa.Schema) -> None:
        if self.closed:
            raise InterruptedError
        self.inner.publish(epoch, staged, blobs, schema)


class Producer:
    """Notes what a Kafka sink asks of its client."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sent: list[bytes] = []

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def produce(self, **record: Any) -> None:
        self.calls.append("produce")
        self.sent.append(record["value"])

    def commit_transaction(self, _: float) -> None:
        self.calls.append("commit")

    def abort_transaction(self, _: float) -> None:
        self.calls.append("abort")


class Unconnected(KafkaSink):
    """The Kafka sink with no broker: all but its client is as it is."""

    def __init__(self) -> None:
        super().__init__("localhost:1", "out")
        self.client = Producer()

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self._marker, self._producer = Marker(self._client, "marker", app), self.client


class World:
    """A sink, and how to see whether anything reached it."""

    def __init__(self, sink: Sink, seen: Callable[[], list[Any]]) -> None:
        self.sink, self.seen = sink, seen


def worlds(folder: Path) -> dict[str, World]:
    """One of each sink. What ``foreach_batch`` gives out is made by Spark, so its function must not be reached here."""
    out = {name: folder / name for name in ("parquet", "parted", "delta")}
    calls: list[Any] = []
    memory, kafka = MemorySink(), Unconnected()

    def files(name: str) -> Callable[[], list[Any]]:
        return lambda: [path for path in out[name].rglob("*") if path.is_file() and "_delta_log" not in path.parts]

    return {
        "parquet": World(ParquetSink(out["parquet"]), files("parquet")),
        "parted": World(ParquetSink(out["parted"], partition_by="kind"), files("parted")),
        "delta": World(DeltaSink(out["delta"]), files("delta")),
        "memory": World(memory, lambda: memory.table().to_pylist()),
        "foreach_batch": World(ForeachBatchSink(lambda *given: calls.append(given), None), lambda: calls),  # type: ignore[arg-type]
        "kafka": World(kafka, lambda: kafka.client.calls),
    }


class Driver:
    """A driver without Spark whose pipeline ends in real sinks."""

    def __init__(self, blobs: Blobs, *sinks: Sink) -> None:
        self.blobs = blobs
        settings = StoreSettings(key_groups=4)
        history = History.create(blobs, 4, settings=settings, clock=ManualClock(1000), randomness=SystemRandomness())
        self.store = Store(history, Counters())
        rows = Stream(None, {"": Columns(ROWS)}, Input(), {})  # type: ignore[arg-type]
        named = rows.key_by("user").process(Named(), name="named")
        (outlet,) = named.write("memory").outlets
        plan = Plan([Outlet(f"out{n}", outlet.node, sink) for n, sink in enumerate(sinks)])
        place = StateLocation(self.store, self.store.writer("driver", force=True), "", settings, {}, blobs)
        self.epochs = EpochRunner(place, plan, LocalEngine([], plan), 2)

    def prepare(self) -> "Driver":
        self.epochs.prepare({"": ROWS.empty_table()})
        return self

    def run(self) -> None:
        self.epochs.run({"": GIVEN}, SourcePosition("q", 0, "v1\n{}\n0"), 1000, 0)


def left_unpublished(blobs: Blobs, *sinks: Sink) -> Driver:
    """A driver that has committed an epoch and published nothing of it."""
    gates = [Gate(sink) for sink in sinks]
    driver = Driver(blobs, *gates).prepare()
    for gate in gates:
        gate.closed = True
    try:
        driver.run()
    except InterruptedError:
        for gate in gates:
            gate.closed = False
        assert driver.store.head.epoch == 1 and len(driver.store.head.outputs) == 2
        return driver
    raise AssertionError("nothing was staged")
