"""The demo: a live join of impressions and clicks that is rescaled while a worker is killed; then checked against a batch join.

    python examples/ad_join.py [--seconds 45] [--rows-per-second 4000] [--folder DIR]

Exit code 1 if the output is not exactly that of a batch join of the same events.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live
from rich.table import Table

import floodplain as fp
from floodplain.spark.java import provide_java

WITHIN_MS = 20_000
"""A click matches the impressions of its ad that are at most this much earlier."""
DISORDER_MS = 4_000
ADS = 20_000
START_MS = 1_800_000_000_000


class AdJoin(fp.KeyedProcess):
    """Impression(ad, time) ⋈ Click(ad, time): both sides are buffered in lists, until the watermark excludes further partners."""

    impressions = fp.List("long")
    clicks = fp.List("long")
    output = "ad long, impression long, click long"

    def process(self, key, rows, ctx):
        impressions, clicks = self.impressions.get(), self.clicks.get()
        for row in rows:
            at = row.at_ms
            if row.kind == "impression":
                yield from ((key.ad, at, click) for click in clicks if at <= click <= at + WITHIN_MS)
                impressions.append(at)
                self.impressions.append(at)
            else:
                yield from ((key.ad, shown, at) for shown in impressions if shown <= at <= shown + WITHIN_MS)
                clicks.append(at)
                self.clicks.append(at)
        ctx.timer(ctx.event_time + WITHIN_MS + 1)

    def on_timer(self, key, at, ctx):
        for side in (self.impressions, self.clicks):
            kept = [time_ms for time_ms in side.get() if time_ms + WITHIN_MS >= at]
            if len(kept) < len(side):
                side.set(kept)
        return ()


class Events(threading.Thread):
    """Writes a file of events every half second, out of order by up to ``DISORDER_MS``; the same in every run."""

    def __init__(self, folder: Path, seconds: float, rows_per_second: int) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.files = max(int(seconds * 2), 2)
        self.rows = rows_per_second // 2
        self.written = 0
        self.warm = threading.Event()
        """Set once the first epoch is committed. Starting Spark's workers takes a while, with nothing to show."""
        folder.mkdir(parents=True)

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self.files):
            if number == 1:
                self.warm.wait()
                began = time.monotonic() - 0.5
            rng = np.random.default_rng(number)
            at_ms = START_MS + number * 500 + rng.integers(0, 500, self.rows) - rng.integers(0, DISORDER_MS, self.rows)
            kind = np.where(rng.random(self.rows) < 0.7, "impression", "click")
            rows = pa.table({"kind": kind, "ad": (ADS * rng.random(self.rows) ** 2).astype(np.int64), "at_ms": at_ms})
            rows = rows.append_column("at", pa.array(at_ms * 1000).cast(pa.timestamp("us", "UTC")))
            temp = self.folder / f".{number:06d}.parquet"
            pq.write_table(rows, temp)
            temp.rename(self.folder / f"{number:06d}.parquet")
            self.written += self.rows
            time.sleep(max(0.0, began + (number + 1) * 0.5 - time.monotonic()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45, help="how long events are generated")
    parser.add_argument("--rows-per-second", type=int, default=4000)
    parser.add_argument("--folder", type=Path, help="folder for events, state and output (default: a temporary one)")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="floodplain-demo-"))
    console = Console()
    spark = start_spark()
    events = Events(folder / "events", arguments.seconds, arguments.rows_per_second)
    events.start()
    schema = "kind string, ad long, at_ms long, at timestamp"
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 4).parquet(str(folder / "events"))
    query = (
        fp.stream(rows)
        .watermark("at", f"{DISORDER_MS} milliseconds")
        .key_by("ad")
        .process(AdJoin())
        .write("parquet", path=str(folder / "joined"))
        .start(state=folder / "state", slots=2)
    )
    watch(query, events, console)
    query.process_all_available()
    if query.exception is not None:
        console.print(f"[red]the query failed: {query.exception}")
        return 1
    query.stop()
    spark.stop()
    console.print(f"State, output and events are in {folder}. Try: floodplain inspect {folder / 'state'}")
    return exit_code(folder, console)


def exit_code(folder: Path, console: Console) -> int:
    return 0 if verdict(folder, console) else 1


def start_spark() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    provide_java(Path(tempfile.mkdtemp(prefix="floodplain-java-")))
    spark = (
        # Four attempts per task, so that the query survives a killed worker.
        SparkSession.builder.master("local[2,4]")
        .appName("floodplain demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def watch(query: fp.Query, events: Events, console: Console) -> None:
    """Shows progress until all events are written; rescales after a third of them, and kills a worker after two thirds."""
    notes: list[str] = []
    acts = [(1 / 3, lambda: rescale(query, 4)), (2 / 3, kill_a_worker)]
    with Live(console=console, refresh_per_second=4) as live:
        while events.is_alive() and query.exception is None:
            if query.progress:
                events.warm.set()
            done = events.written / (events.files * events.rows)
            if acts and done >= acts[0][0] and (note := acts[0][1]()):
                notes.append(note)
                acts.pop(0)
            live.update(view(query, events, notes))
            time.sleep(0.25)


def rescale(query: fp.Query, slots: int) -> str:
    query.rescale(slots)
    return f"rescaled to {slots} slots while running: one edit, no state moved"


def kill_a_worker() -> str:
    """Kills one of the Python workers that this process's Spark forked; returns "" if there is none at the moment."""
    parents = parent_of_each()
    for pid in sorted(parents, reverse=True):
        # A worker has the daemon as its parent; the daemon itself has the JVM.
        if is_daemon(pid) and is_daemon(parents[pid]) and os.getpid() in ancestors(pid, parents):
            os.kill(pid, signal.SIGKILL)
            return f"killed Python worker {pid}: its task is tried again"
    return ""


def parent_of_each() -> dict[int, int]:
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    pids: set[int] = set()
    while pid in parents and pid not in pids:
        pids.add(pid)
        pid = parents[pid]
    return pids


def is_daemon(pid: int) -> bool:
    with suppress(OSError):
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def view(query: fp.Query, events: Events, notes: list[str]) -> Table:
    table = Table(title="impressions ⋈ clicks", min_width=72)
    for heading in ("epoch", "rows", "joined", "latency", "slots", "watermark", "state"):
        table.add_column(heading, justify="right")
    state = f"{sum(run.length for runs in query.manifest.runs.values() for run in runs) / 1e6:.1f} MB"
    for epoch in query.progress[-8:]:
        watermark = f"+{(epoch.watermark_ms - START_MS) / 1000:.1f} s" if epoch.watermark_ms is not None else "none"
        latency = f"{epoch.duration_ms} ms"
        table.add_row(str(epoch.epoch), f"{epoch.rows:,}", f"{epoch.output_rows:,}", latency, str(epoch.slots), watermark, state)
    done = query.progress
    rate = sum(epoch.rows for epoch in done[1:]) * 1000 / max(sum(epoch.duration_ms for epoch in done[1:]), 1)
    table.caption = "\n".join([f"{events.written:,} events written, {rate:,.0f} rows/s processed while busy", *notes])
    return table


def verdict(folder: Path, console: Console) -> bool:
    """Compares the output with a batch join of the same events in DuckDB."""
    events = f"read_parquet('{folder}/events/*.parquet')"
    wanted = f"""
        select i.ad, i.at_ms as impression, c.at_ms as click from {events} i join {events} c on i.ad = c.ad
        where i.kind = 'impression' and c.kind = 'click' and c.at_ms between i.at_ms and i.at_ms + {WITHIN_MS}
    """
    published = f"select ad, impression, click from read_parquet('{folder}/joined/*.parquet')"
    counts = [count(query) for query in (wanted, published)]
    lost, extra = count(f"{wanted} except all {published}"), count(f"{published} except all {wanted}")
    good = counts[0] == counts[1] and not lost and not extra
    colour, word = ("green", "equals") if good else ("red", "DIFFERS FROM")
    console.print(
        f"[{colour}]{counts[1]:,} joined rows: the output {word} the batch join ({counts[0]:,} rows, {lost} lost, {extra} extra)"
    )
    return good


def count(query: str) -> int:
    return int(duckdb.sql(f"select count(*) from ({query})").fetchall()[0][0])


if __name__ == "__main__":
    sys.exit(main())
