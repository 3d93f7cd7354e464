"""A small state with one operator of each kind, and how it was made. Each format that ever was is kept beside this file.

``python -m tests.formats.small_state`` writes that of the present format, where there is none yet.
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

import floodplain as fp
from floodplain.clock import ManualClock, SeededRandomness
from floodplain.pipeline.stream import Output, Stream
from floodplain.plan.nodes import Input, Outlet, Plan
from floodplain.runtime.engine import StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.settings import StoreSettings
from floodplain.store.store import Store
from floodplain.testing.faults import CapturedSink, Steps
from floodplain.testing.local_engine import LocalEngine
from floodplain.versions.records.edit import SourcePosition
from floodplain.versions.records.frame import VERSION

HERE = Path(__file__).parent
COLUMNS = pa.schema([("user", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
MINUTE_MS = 60_000


class Visits(fp.KeyedProcess):
    visits = fp.Value("long", default=0)
    pages = fp.Map("long", "long")
    trail = fp.List("long")
    seen = fp.Set("long")
    total = fp.Reducing("long", "sum")
    output = "user string, visits long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.visits.set(self.visits.get() + 1)
            self.pages.merge(row.v, 1)
            self.trail.append(row.v)
            self.seen.add(row.v % 3)
            self.total.add(row.v)
        ctx.timer(ctx.watermark + 60 * MINUTE_MS if ctx.watermark and ctx.watermark > 0 else 60 * MINUTE_MS)
        yield key.user, self.visits.get()

    def on_timer(self, key, at, ctx):
        return ()


def pipeline(stream: Stream) -> Output:
    """One of each kind, each with its own sink."""
    rows = stream.watermark("ts", "1 minute")
    made = {
        "visits": rows.key_by("user").process(Visits(), name="visits"),
        "hot": rows.key_by("user")
        .window(fp.tumbling("10 minutes"), lateness="5 minutes")
        .agg(name="hot", n=fp.count(), total=fp.sum("v"), mean=fp.avg("v")),
        "slides": rows.key_by("user").window(fp.sliding("10 minutes", "5 minutes")).agg(name="slides", high=fp.max("v")),
        "visit": rows.key_by("user").window(fp.session("3 minutes")).agg(name="visit", n=fp.count()),
        "threes": rows.key_by("user").window(fp.count_window(3)).agg(name="threes", total=fp.sum("v")),
        "running": rows.key_by("user").agg(name="running", n=fp.count(), newest=fp.last("v"), kinds=fp.count_distinct("v")),
        "firsts": rows.dedup("user", "v", within="30 minutes", name="firsts"),
        "best": rows.key_by("user").top(2, "v desc", name="best"),
        "latest": rows.key_by("user").last("v", name="latest"),
        "wide": rows.key_by("user").pivot("v", [1, 2], "v", name="wide", repeats="sum"),
        "pairs": rows.select("user", "v", "ts").join(
            rows.select("user", "v", "ts"), "user", within=("0 seconds", "2 minutes"), suffixes=("", "_right"), name="pairs"
        ),
    }
    outputs = [each.write("memory", name=name) for name, each in made.items()]
    first, *others = outputs
    for other in others:
        first = first.also(other)
    return first


def rows_of(batch: int) -> pa.Table:
    """Two users, ten rows a batch, a minute apart."""
    at = range(batch * 10, batch * 10 + 10)
    return pa.table(
        {
            "user": [("ada", "bob")[i % 2] for i in at],
            "v": [i * 7 % 5 + i // 20 for i in at],
            "ts": pa.array([i * MINUTE_MS * 1000 for i in at], pa.int64()).cast(COLUMNS.field("ts").type),
        },
        schema=COLUMNS,
    )


class Described:
    """The input where a pipeline is described."""

    schema = COLUMNS
    columns = COLUMNS.names
    sparkSession = None  # noqa: N815 — as Spark calls it

    def withWatermark(self, column: str, delay: str) -> "Described":  # noqa: N802 — as Spark calls it
        return self


class Running:
    """The pipeline on a directory, in this process: a driver without Spark."""

    def __init__(self, location: Path, build: Callable[[Stream], Output] = pipeline, **options: Any) -> None:
        settings = StoreSettings(key_groups=4, checkpoint_every=4)
        randomness = SeededRandomness(sum(map(ord, location.name)) if "seed" not in options else options.pop("seed"))
        self.store = Store.open(location, create=True, settings=settings, clock=ManualClock(1_000_000), randomness=randomness)
        output = build(Stream(None, {"": Described()}, Input(), {}))  # type: ignore[arg-type]
        self.sinks = {outlet.name: CapturedSink(outlet.name, Steps()) for outlet in output.outlets}
        plan = Plan(
            [Outlet(outlet.name, outlet.node, self.sinks[outlet.name]) for outlet in output.outlets],
            output.stream.event_time,
            output.stream.rule,
        )
        self.writer = self.store.writer("small", force=True)
        place = StateLocation(self.store, self.writer, str(location), settings, {}, self.store.history.blobs)
        self.epochs = EpochRunner(place, plan, LocalEngine([], plan), 2)
        self.epochs.prepare({"": COLUMNS.empty_table()}, **options)

    def batch(self, number: int) -> None:
        watermark_ms = max((number * 10 - 2) * MINUTE_MS, 0)
        position = SourcePosition("small", number, f"v1\n{{}}\n{number}")
        self.epochs.run({"": rows_of(number)}, position, 1_000_000 + number, watermark_ms)

    def close(self) -> None:
        self.epochs.close()
        self.store.close()


BATCHES = 4


def make(location: Path) -> None:
    running = Running(location, seed=7)
    for number in range(BATCHES):
        running.batch(number)
    running.close()


def archive(version: int) -> Path:
    return HERE / f"state_v{version}.tar.gz"


@contextmanager
def unpacked(version: int) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        with tarfile.open(archive(version)) as packed:
            packed.extractall(folder, filter="data")
        yield Path(folder) / "state"


def content(location: Path) -> dict[str, list[str]]:
    """All rows of all tables, in words."""
    snapshot = Store.open(location).snapshot()
    tables = {name: snapshot.table(name).to_arrow() for name in sorted(snapshot.manifest.schemas)}
    return {name: sorted(map(repr, table.to_pylist())) for name, table in tables.items()}


def holds(version: int) -> dict[str, list[str]]:
    """The content of a kept state, as the code that made it read it."""
    found: dict[str, list[str]] = json.loads(archive(version).with_suffix("").with_suffix(".json").read_text())
    return found


def write(version: int = VERSION) -> None:
    if archive(version).exists():
        return
    with TemporaryDirectory() as folder:
        make(Path(folder) / "state")
        with tarfile.open(archive(version), "w:gz", compresslevel=9) as packed:
            packed.add(Path(folder) / "state", "state", filter=_anonymous)
        told = json.dumps(content(Path(folder) / "state"), indent=1)
        archive(version).with_suffix("").with_suffix(".json").write_text(told + "\n")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    write()
