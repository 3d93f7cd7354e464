"""The store alone, in about fifteen seconds: counters of ad impressions and clicks, written epoch by epoch.

While one process writes, another compacts. A second writer takes over and the first is fenced off. Past epochs are read,
two of them compared, a flipped bit is found. At the end the state must equal what NumPy computed from the same rows beside
it, or the exit code is 1.

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
class Truth:
    """What the state must be, computed from the same rows without the store."""

    impressions: np.ndarray = field(default_factory=lambda: np.zeros(ADS, np.int64))
    clicks: np.ndarray = field(default_factory=lambda: np.zeros(ADS, np.int64))
    regions: np.ndarray = field(default_factory=lambda: np.zeros((ADS, len(REGIONS)), np.int64))

    def add(self, batch: "Batch") -> None:
        self.impressions += np.bincount(batch.ads, minlength=ADS)
        self.clicks += np.bincount(batch.ads, batch.clicked, minlength=ADS).astype(np.int64)
        np.add.at(self.regions, (batch.ads, batch.regions), 1)

    def copy(self) -> "Truth":
        return Truth(self.impressions.copy(), self.clicks.copy(), self.regions.copy())

    def same_as(self, snapshot: fp.Snapshot) -> bool:
        found = Truth()
        ads = snapshot.table("ads").to_arrow()
        at = _numbers(ads["ad"], AD_NAMES)
        found.impressions[at], found.clicks[at] = ads["impressions"].to_numpy(), ads["clicks"].to_numpy()
        regions = snapshot.table("regions").to_arrow()
        at = _numbers(regions["ad"], AD_NAMES), _numbers(regions["region"], REGION_NAMES)
        found.regions[at] = regions["impressions"].to_numpy()
        pairs = ((found.impressions, self.impressions), (found.clicks, self.clicks), (found.regions, self.regions))
        rows = (np.count_nonzero(self.impressions), np.count_nonzero(self.regions))
        return (len(ads), len(regions)) == rows and all(np.array_equal(*pair) for pair in pairs)


def _numbers(names: pa.ChunkedArray, of: pa.Array) -> np.ndarray:
    return pa.compute.index_in(names, of).to_numpy()


@dataclass(frozen=True)
class Batch:
    """The rows of one epoch: impressions of ads, some of them clicked. Few ads get most of them."""

    ads: np.ndarray
    regions: np.ndarray
    clicked: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Batch":
        ads = (ADS * rng.power(0.4, ROWS)).astype(np.int64)
        return cls(ads, rng.integers(0, len(REGIONS), ROWS), rng.random(ROWS) < 0.03)

    def write(self, epoch: fp.Epoch) -> None:
        """Blind merges: nothing is read, and rows of one ad fold within the epoch."""
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
    truth: Truth = field(default_factory=Truth)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(42))
    failed: list[str] = field(default_factory=list)
    shown: deque[tuple[str, ...]] = field(default_factory=lambda: deque(maxlen=SHOWN_EPOCHS))
    written: int = 0

    def run(self) -> int:
        self.console.print(Panel.fit("[bold]Floodplain[/]: state as layers of immutable columns, one commit per epoch"))
        store = fp.open(self.directory, create=True, settings=fp.StoreSettings(sync=False))
        with self._compactor() as compactor:
            writer = self._first_writer(store)
            early = (store.head.epoch, self.truth.copy())
            writer = self._second_writer(store, writer)
        self._report(compactor)
        self._time_travel(store, *early)
        self._diff(store)
        self._flip_a_bit(max(store.snapshot().manifest.objects()))
        self._collect(writer)
        return self._verdict(store)

    @contextmanager
    def _compactor(self) -> Iterator[dict[str, Any]]:
        """Another process compacts as long as this lasts; what it did is in the dictionary afterwards."""
        self._title("Another process compacts while this one writes: floodplain compact --watch 0.5")
        with self._floodplain("compact", "--watch", "0.5", "--json") as process:
            done: dict[str, Any] = {}
            assert process.stderr is not None
            process.stderr.readline()  # it says that it is watching: from here on it can be interrupted
            try:
                yield done
            finally:
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate()
        done.update(json.loads(out))
        self._expect("the compactor stopped in good order", process.returncode == 0)

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
        self._title("A second writer takes over; the first one comes back from a pause and tries to commit")
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
            self.truth.add(Batch.draw(self.rng))
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
        self.truth.add(batch)
        self.written += ROWS
        wanted = self.rng.integers(0, ADS, LOOKUPS)
        began = time.perf_counter()
        found = store.snapshot().table("ads").multi_get(pa.table({"ad": AD_NAMES.take(pa.array(wanted))})).aligned()
        read_s = time.perf_counter() - began
        right = np.array_equal(found["impressions"].to_numpy(), self.truth.impressions[wanted])
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

    def _time_travel(self, store: fp.Store, epoch: int, truth: Truth) -> None:
        self._title(f"Time travel: epoch {epoch}, by its tag")
        began = time.perf_counter()
        with store.at(tag="before_the_takeover", pinned=True) as snapshot:
            same = truth.same_as(snapshot)
        self._expect(f"epoch {epoch} reads as it was", same, f"{1000 * (time.perf_counter() - began):.0f} ms")
        self._expect("the newest epoch is another", not truth.same_as(store.snapshot()))

    def _diff(self, store: fp.Store) -> None:
        newest = store.snapshot().epoch
        self._title(f"What changed between epochs {newest - 1} and {newest}")
        changes = list(store.diff("ads", newest - 1, newest))
        added, changed, deleted = (sum(len(getattr(part, name)) for part in changes) for name in ("added", "after", "deleted"))
        self.console.print(f"  {added:,} ads new, {changed:,} counted on, {deleted:,} gone")
        self._expect("an epoch changes some ads and deletes none", added + changed > 0 and deleted == 0)

    def _flip_a_bit(self, file: str) -> None:
        self._title("One bit of a copy is flipped: floodplain verify")
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
        self._title("Garbage: what no retained epoch needs")
        collected = writer.collect_garbage()
        self.console.print(f"  {collected.runs} files, {decimal(collected.run_bytes)}, {len(collected.epochs)} epochs forgotten")
        writer.close()

    def _verdict(self, store: fp.Store) -> int:
        self._title("Verdict")
        snapshot = store.snapshot()
        self._expect(f"the state of epoch {snapshot.epoch} equals what NumPy computed", self.truth.same_as(snapshot))
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
    parser = argparse.ArgumentParser(description="A small story told by the store alone.")
    parser.add_argument("--directory", type=Path, help="where the store goes; must be empty (default: a temporary directory)")
    parser.add_argument("--seconds", type=float, default=8, help="how long to write (default: 8)")
    parser.add_argument("--epochs", type=int, help="write this many epochs instead, at least 2")
    parser.add_argument("--sabotage", action="store_true", help="leave some rows out, to see the verdict turn")
    given = parser.parse_args()
    if given.epochs is not None and given.epochs < 2:
        parser.error("--epochs must be at least 2")
    if given.directory is not None:
        return Demo(given.directory, given.seconds, given.epochs, given.sabotage).run()
    with tempfile.TemporaryDirectory(prefix="floodplain-demo-") as scratch:
        return Demo(Path(scratch) / "store", given.seconds, given.epochs, given.sabotage).run()


if __name__ == "__main__":
    sys.exit(main())
