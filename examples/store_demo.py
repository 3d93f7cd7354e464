"""The store without Spark, in about fifteen seconds: counters of ad impressions and clicks, written epoch by epoch.

While one process writes, another compacts. A second writer takes the lease, and the first is fenced. A past epoch is read, two
epochs are compared, and a flipped bit is detected. The exit code is 1 unless the final state equals the counts that NumPy
computes from the same rows.

    python examples/store_demo.py [--directory DIR] [--seconds N] [--epochs N]
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

import floodplain as fp

ADS = 20_000
REGIONS = ("africa", "america", "antarctica", "asia", "australia", "europe")
ROWS = 100_000
LOOKUPS = 1_000
SHOWN_EPOCHS = 10

AD_NAMES = pa.array([f"ad-{number:05d}" for number in range(ADS)])
REGION_NAMES = pa.array(REGIONS)
COUNT = fp.Column(pa.int64(), merge="sum", default=0)
TABLES = (
    fp.value_table("ads", {"ad": pa.string()}, {"impressions": COUNT, "clicks": COUNT}),
    fp.map_table("regions", {"ad": pa.string()}, {"region": pa.string()}, {"impressions": COUNT}),
)


@dataclass
class Expected:
    """The expected state, computed from the same rows without the store."""

    impressions: np.ndarray = field(default_factory=lambda: np.zeros(ADS, np.int64))
    clicks: np.ndarray = field(default_factory=lambda: np.zeros(ADS, np.int64))
    regions: np.ndarray = field(default_factory=lambda: np.zeros((ADS, len(REGIONS)), np.int64))

    def add(self, batch: "Batch") -> None:
        self.impressions += np.bincount(batch.ads, minlength=ADS)
        self.clicks += np.bincount(batch.ads, batch.clicked, minlength=ADS).astype(np.int64)
        np.add.at(self.regions, (batch.ads, batch.regions), 1)

    def copy(self) -> "Expected":
        return Expected(self.impressions.copy(), self.clicks.copy(), self.regions.copy())

    def same_as(self, snapshot: fp.Snapshot) -> bool:
        actual = Expected()
        ads = snapshot.table("ads").to_arrow()
        at = _numbers(ads["ad"], AD_NAMES)
        actual.impressions[at], actual.clicks[at] = ads["impressions"].to_numpy(), ads["clicks"].to_numpy()
        regions = snapshot.table("regions").to_arrow()
        at = _numbers(regions["ad"], AD_NAMES), _numbers(regions["region"], REGION_NAMES)
        actual.regions[at] = regions["impressions"].to_numpy()
        pairs = ((actual.impressions, self.impressions), (actual.clicks, self.clicks), (actual.regions, self.regions))
        rows = (np.count_nonzero(self.impressions), np.count_nonzero(self.regions))
        return (len(ads), len(regions)) == rows and all(np.array_equal(*pair) for pair in pairs)


def _numbers(names: pa.ChunkedArray, of: pa.Array) -> np.ndarray:
    return pa.compute.index_in(names, of).to_numpy()


@dataclass(frozen=True)
class Batch:
    """The rows of one epoch: impressions of ads, some of them clicked. The ads are skewed."""

    ads: np.ndarray
    regions: np.ndarray
    clicked: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Batch":
        ads = (ADS * rng.power(0.4, ROWS)).astype(np.int64)
        return cls(ads, rng.integers(0, len(REGIONS), ROWS), rng.random(ROWS) < 0.03)

    def write(self, epoch: fp.Epoch) -> None:
        """Merges without reading; rows of the same ad are merged within the epoch."""
        ads, ones = AD_NAMES.take(pa.array(self.ads)), pa.repeat(pa.scalar(1, pa.int64()), ROWS)
        clicks = pa.array(self.clicked.astype(np.int64))
        epoch.merge("ads", pa.table({"ad": ads, "impressions": ones, "clicks": clicks}))
        regions = REGION_NAMES.take(pa.array(self.regions))
        epoch.merge("regions", pa.table({"ad": ads, "region": regions, "impressions": ones}))


@dataclass
class Demo:
    directory: Path
    seconds: float
    epochs: int | None
    sabotage: bool
    console: Console = field(default_factory=Console)
    expected: Expected = field(default_factory=Expected)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(42))
    failed: list[str] = field(default_factory=list)
    shown: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=SHOWN_EPOCHS))
    written: int = 0

    def run(self) -> int:
        self.console.print(Panel.fit("[bold]Floodplain[/]: state as layers of immutable columns, one commit per epoch"))
        store = fp.open(self.directory, create=True, settings=fp.StoreSettings(sync=False))
        with self._compactor() as compactor:
            writer = self._first_writer(store)
            early = (store.head.epoch, self.expected.copy())
            writer = self._second_writer(store, writer)
        self._report(compactor)
        self._time_travel(store, *early)
        self._diff(store)
        self._flip_a_bit(max(store.snapshot().manifest.objects()))
        self._collect(writer)
        return self._verdict(store)

    @contextmanager
    def _compactor(self) -> Iterator[dict[str, Any]]:
        """Runs a compactor in another process meanwhile; afterwards, the dictionary has its totals."""
        self._title("Another process compacts while this one writes: floodplain compact --watch --every 0.5")
        with self._floodplain("compact", "--watch", "--every", "0.5", "--json") as process:
            done: dict[str, Any] = {}
            assert process.stderr is not None
            process.stderr.readline()  # its first line: from here on it handles interrupts
            try:
                yield done
            finally:
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate()
        done.update(json.loads(out.splitlines()[-1]))
        self._expect("the compactor stopped without an error", process.returncode == 0)

    def _floodplain(self, command: str, *options: str, directory: Path | None = None) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", "floodplain", command, str(directory or self.directory), *options]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _first_writer(self, store: fp.Store) -> fp.Writer:
        writer = store.writer("first")
        for table in TABLES:
            writer.define(table)
        self._write(store, writer, self.seconds / 2, self.epochs and max(1, self.epochs // 2))
        store.tag("before_the_takeover")
        return writer

    def _second_writer(self, store: fp.Store, first: fp.Writer) -> fp.Writer:
        self._title("A second writer takes the lease; the first one resumes after a pause and tries to commit")
        late = first.epoch()
        Batch.draw(self.rng).write(late)
        other = fp.open(self.directory, settings=fp.StoreSettings(sync=False))
        second = other.writer("second", force=True)
        try:
            late.commit()
            self._expect("the first writer is fenced", False)
        except fp.Fenced as fenced:
            self._expect("the first writer is fenced", True, str(fenced))
        self._write(other, second, self.seconds / 2, self.epochs and self.epochs - self.epochs // 2)
        if self.sabotage:
            self.expected.add(Batch.draw(self.rng))
        store.snapshot()
        return second

    def _write(self, store: fp.Store, writer: fp.Writer, seconds: float, epochs: int | None) -> None:
        began, count = time.perf_counter(), 0
        with Live(self._epoch_table(), console=self.console, refresh_per_second=8) as live:
            while count < epochs if epochs else time.perf_counter() - began < seconds:
                self._write_epoch(store, writer)
                count += 1
                live.update(self._epoch_table())

    def _write_epoch(self, store: fp.Store, writer: fp.Writer) -> None:
        batch = Batch.draw(self.rng)
        began = time.perf_counter()
        epoch = writer.epoch()
        batch.write(epoch)
        head = epoch.commit()
        wrote_s = time.perf_counter() - began
        self.expected.add(batch)
        self.written += ROWS
        ads = self.rng.integers(0, ADS, LOOKUPS)
        began = time.perf_counter()
        values = store.snapshot().table("ads").multi_get(pa.table({"ad": AD_NAMES.take(pa.array(ads))})).aligned()
        read_s = time.perf_counter() - began
        right = np.array_equal(values["impressions"].to_numpy(), self.expected.impressions[ads])
        if not right:
            self.failed.append(f"lookups of epoch {head.epoch}")
        runs = [run for runs in head.runs.values() for run in runs]
        figures = (f"{ROWS / wrote_s:,.0f}", f"{LOOKUPS / read_s:,.0f}", str(len(runs)), decimal(sum(run.length for run in runs)))
        self.shown.append((str(head.epoch), head.lease.owner, *figures, "yes" if right else "NO"))

    def _epoch_table(self) -> Table:
        table = Table("epoch", "writer", title=f"{self.written:,} rows in", title_justify="left")
        for name in ("rows/s written", "keys/s looked up", "runs", "size", "right"):
            table.add_column(name, justify="right")
        for row in self.shown:
            table.add_row(*row)
        return table

    def _report(self, done: dict[str, Any]) -> None:
        self.console.print(
            f"  the compactor made {done['steps']} steps: {done['runs_merged']:,} runs merged, "
            f"{done['rows_before']:,} rows → {done['rows_after']:,}"
        )

    def _time_travel(self, store: fp.Store, epoch: int, expected: Expected) -> None:
        self._title(f"Time travel: epoch {epoch}, by its tag")
        began = time.perf_counter()
        with store.at(tag="before_the_takeover", pinned=True) as snapshot:
            same = expected.same_as(snapshot)
        self._expect(f"epoch {epoch} reads as it was", same, f"{1000 * (time.perf_counter() - began):.0f} ms")
        self._expect("the newest epoch differs", not expected.same_as(store.snapshot()))

    def _diff(self, store: fp.Store) -> None:
        newest = store.snapshot().epoch
        self._title(f"What changed between epochs {newest - 1} and {newest}")
        changes = list(store.diff("ads", newest - 1, newest))
        added, changed, deleted = (sum(len(getattr(part, name)) for part in changes) for name in ("added", "after", "deleted"))
        self.console.print(f"  {added:,} ads added, {changed:,} changed, {deleted:,} deleted")
        self._expect("an epoch changes some ads and deletes none", added + changed > 0 and deleted == 0)

    def _flip_a_bit(self, file: str) -> None:
        self._title("A bit is flipped in a copy of the store: floodplain verify")
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "copy"
            shutil.copytree(self.directory, copy)
            data = bytearray((copy / file).read_bytes())
            data[len(data) // 2] ^= 1
            (copy / file).write_bytes(data)
            code, verdict = self._verified(copy)
        damages = verdict["damages"]
        named = bool(damages) and damages[0]["file"] == file
        self._expect("the damage is found and the file named", code == 1 and named, damages[0]["file"] if damages else "")
        if damages:
            damage = damages[0]
            self.console.print(f"    expected {damage['expected']}\n    found {damage['found']}", highlight=False)
            self.console.print(f"    last good epoch: {damage['last_good_epoch']}")
        self._expect("the original is whole", self._verified(self.directory)[0] == 0)

    def _verified(self, directory: Path) -> tuple[int, dict[str, Any]]:
        with self._floodplain("verify", "--json", directory=directory) as process:
            out, _ = process.communicate()
        return process.returncode, json.loads(out)

    def _collect(self, writer: fp.Writer) -> None:
        self._title("Garbage collection: files that no retained epoch needs")
        collected = writer.collect_garbage()
        self.console.print(f"  {collected.runs} files, {decimal(collected.run_bytes)}, {len(collected.epochs)} epochs forgotten")
        writer.close()

    def _verdict(self, store: fp.Store) -> int:
        self._title("Verdict")
        snapshot = store.snapshot()
        self._expect(f"the state of epoch {snapshot.epoch} equals what NumPy computed", self.expected.same_as(snapshot))
        if self.failed:
            self.console.print(Panel.fit(f"[bold red]WRONG[/]: {'; '.join(self.failed)}"))
            return 1
        self.console.print(Panel.fit(f"[bold green]RIGHT[/]: {self.written:,} rows, {snapshot.epoch} epochs, every count equal"))
        return 0

    def _title(self, text: str) -> None:
        self.console.print(f"\n[bold cyan]{text}[/]", highlight=False)

    def _expect(self, what: str, holds: bool, more: str = "") -> None:
        sign = "[green]✓[/]" if holds else "[red]✗[/]"
        self.console.print(f"  {sign} {what}" + (f" [dim]({more})[/]" if more else ""), highlight=False)
        if not holds:
            self.failed.append(what)


def main() -> int:
    parser = argparse.ArgumentParser(description="Shows the store without Spark.")
    parser.add_argument("--directory", type=Path, help="where the store goes; must be empty (default: a temporary directory)")
    parser.add_argument("--seconds", type=float, default=8, help="how long to write (default: 8)")
    parser.add_argument("--epochs", type=int, help="write this many epochs instead, at least 2")
    parser.add_argument("--sabotage", action="store_true", help="do not write some rows, so that the verdict is WRONG")
    arguments = parser.parse_args()
    if arguments.epochs is not None and arguments.epochs < 2:
        parser.error("--epochs must be at least 2")
    if arguments.directory is not None:
        return Demo(arguments.directory, arguments.seconds, arguments.epochs, arguments.sabotage).run()
    with tempfile.TemporaryDirectory(prefix="floodplain-demo-") as scratch:
        return Demo(Path(scratch) / "store", arguments.seconds, arguments.epochs, arguments.sabotage).run()


if __name__ == "__main__":
    sys.exit(main())
