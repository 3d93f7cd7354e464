"""The benchmark ``peers``: a keyed count and an interval join on the same events, in Floodplain and other stream processors.

A contender is a program in a process of its own and, except for Floodplain, in an environment of its own. Its task is one JSON
argument:

    workload, warm, timed (files), input (a folder with all of them), output (an empty folder), workers, ports (one for each
    worker), servers (of a Kafka broker, if it needs one), within_ms, disorder_ms, span_ms (of all events), warm_progress and
    all_progress (rows counted, or pairs joined, after the files of the warm-up and after all), and the options of the peer

The last line of its standard output is a report, as JSON: ``seconds`` of the timed files (absent if the rows of its answer have
their output times), ``whole_seconds`` including its start and the warm-up, ``answer`` (the form of its files). The answer of
every run is compared with DuckDB's. A peer that cannot be installed or run is listed with the reason, and the others continue.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from floodplain.bench.harness.frame import Bench, rounded
from floodplain.bench.harness.kafka_broker import broker
from floodplain.bench.harness.maven import Jars, Unfetchable
from floodplain.bench.harness.ports import free_ports
from floodplain.bench.peers.peer_environments import Unavailable, cache_folder, provide
from floodplain.bench.peers.peer_environments import run as run_command
from floodplain.bench.peers.peer_events import COUNT, WORKERS, WORKLOADS, Answer, Feed, Scale
from floodplain.bench.peers.peer_list import PEERS, Peer
from floodplain.bench.workloads import adverts
from floodplain.clock import Clock
from floodplain.errors import BadInput

OURS = "floodplain"
CHOICES = tuple(peer.name for peer in PEERS)
"""Arguments of ``--only``: peers. Floodplain always takes part."""
IVY_SETTINGS = "FLOODPLAIN_IVY_SETTINGS"
"""An Ivy settings file, for a machine that fetches the jars of a broker from a mirror."""
REBALANCE_DELAY_MS = 5000
OUR_SECONDS = 900
"""Timeout of Floodplain's run; the benchmark fails then, because there is nothing to compare with."""
RATIOS = {COUNT: "counter_vs_", "join": "join_vs_"}


@dataclass(frozen=True, slots=True)
class Sizes:
    scale: Scale = field(default_factory=lambda: Scale(1_000_000, 500_000, 500_000, 20_000, warm=1, timed=3))
    rounds: int = 3
    quick: bool = False
    run_seconds: float = 300
    """Timeout of a peer's run; the peer is listed as unavailable then."""
    only: tuple[str, ...] = ()
    """Names of peers; empty for all that run in this form."""

    def includes(self, peer: Peer) -> bool:
        return peer.name in self.only if self.only else peer.quick or not self.quick


FULL = Sizes()
QUICK = Sizes(Scale(1_000_000, 500_000, 500_000, 20_000, warm=1, timed=2), rounds=1, quick=True, run_seconds=120)


@dataclass(slots=True)
class Runs:
    """The timings of one contender's rounds."""

    rows: int
    seconds: list[float] = field(default_factory=list)
    whole_seconds: list[float] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return self.rows / statistics.median(self.seconds)

    def figures(self) -> dict[str, Any]:
        return {
            "rows_per_s": round(self.rows_per_s),
            "rows": self.rows,
            "rounds": len(self.seconds),
            "seconds": rounded(statistics.median(self.seconds)),
            "whole_seconds": rounded(statistics.median(self.whole_seconds)),
        }


def run(sizes: Sizes, clock: Clock, peers: Sequence[Peer] = PEERS) -> dict[str, Any]:
    """Temporary files are removed at the end; the environments stay."""
    bench = Bench("peers", clock)
    chosen = [peer for peer in peers if sizes.includes(peer)]
    with tempfile.TemporaryDirectory(prefix="floodplain-bench-") as folder:
        _Peers(bench, sizes, Path(folder), chosen).run()
    bench.judge(dict.fromkeys(bench.ratios, ("at least", 1.0)))
    bench.figures["sizes"] = asdict(sizes) | {"only": list(sizes.only)}
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in ("pyspark", "duckdb", "pyarrow")}}
    return bench.result()


class _Peers:
    def __init__(self, bench: Bench, sizes: Sizes, home: Path, peers: Sequence[Peer]) -> None:
        self._bench, self._sizes, self._home, self._peers = bench, sizes, home, peers
        self._pythons: dict[str, Path] = {}
        self._feeds: dict[tuple[str, int], Feed] = {}

    def run(self) -> None:
        listed = self._bench.figures["peers"] = {}
        for peer in self._peers:
            listed[peer.name] = {"version": peer.environment.version, "configuration": peer.configuration, "share": peer.share}
            try:
                self._pythons[peer.name] = provide(peer.environment, self._bench.say)
            except Unavailable as reason:
                self._unavailable(peer, "install", reason)
        for workload in WORKLOADS:
            self._race(workload)

    def _unavailable(self, peer: Peer, what: str, reason: Unavailable) -> None:
        self._bench.say(f"{peer.name}, {what}: UNAVAILABLE: {reason}")
        self._bench.figures["peers"][peer.name].setdefault("unavailable", {})[what] = str(reason)

    def _race(self, workload: str) -> None:
        """Floodplain and the peers in turn, round by round, another one first in each."""
        running: dict[str, Peer | None] = {OURS: None}
        running |= {peer.name: peer for peer in self._peers if peer.name in self._pythons}
        runs = {name: Runs(self._feed(workload, peer).timed_rows) for name, peer in running.items()}
        for number in range(self._sizes.rounds):
            names = list(running)
            first = number % len(names)
            for name in [*names[first:], *names[:first]]:
                peer = running[name]
                try:
                    self._time(workload, name, peer, runs[name])
                except Unavailable as reason:
                    if peer is None:
                        raise BadInput(
                            f"{workload}: Floodplain could not run, so there is nothing to compare with: {reason}"
                        ) from None
                    self._unavailable(peer, workload, reason)
                    del running[name], runs[name]
        timed = {name: lap for name, lap in runs.items() if lap.seconds}
        self._bench.figures[workload] = {name: lap.figures() for name, lap in timed.items()}
        for name in [name for name in timed if name != OURS and OURS in timed]:
            self._bench.ratios[RATIOS[workload] + name] = rounded(timed[OURS].rows_per_s / timed[name].rows_per_s)

    def _feed(self, workload: str, peer: Peer | None) -> Feed:
        share = peer.share if peer else 1
        if (workload, share) not in self._feeds:
            folder = self._home / "files" / f"{workload}-{share}"
            self._feeds[workload, share] = Feed(workload, self._sizes.scale.divided(share), folder)
        return self._feeds[workload, share]

    def _time(self, workload: str, name: str, peer: Peer | None, runs: Runs) -> None:
        """One run. The time of a wrong answer does not count."""
        feed = self._feed(workload, peer)
        output = self._home / "output"
        output.mkdir()
        try:
            with broker_options(peer) as task:
                task |= program_task(feed, output, peer)
                seconds = OUR_SECONDS if peer is None else self._sizes.run_seconds
                report = run_program(self._command(peer), task, seconds, own=peer is None)
            answer = Answer(feed, report["answer"], Path(report.get("folder", output)))
            right = answer.right()
            self._bench.check(f"{workload}_{name}_equals_duckdb", right)
            if not right:
                return
            seconds = report.get("seconds") or answer.seconds()
        finally:
            shutil.rmtree(output)
        runs.seconds.append(seconds)
        runs.whole_seconds.append(report["whole_seconds"])
        self._bench.say(f"{workload}, {name}: {runs.rows / seconds:,.0f} rows/s, {report['whole_seconds']:.1f} s with its start")

    def _command(self, peer: Peer | None) -> list[str]:
        if peer is None:
            return [sys.executable, "-m", "floodplain.bench.peer_floodplain"]
        return [str(self._pythons[peer.name]), "-P", str(peer.script)]


@contextmanager
def broker_options(peer: Peer | None) -> Iterator[dict[str, Any]]:
    """Starts a broker if the program needs one; yields the options that tell where it is."""
    with ExitStack() as stack:
        task = {}
        if peer is not None and peer.broker:
            jars = Jars(cache_folder() / "jars", os.environ.get(IVY_SETTINGS))
            try:
                # With the delay, both members are there before partitions are assigned, so that no state moves.
                task["servers"] = stack.enter_context(broker(free_ports(2), jars, rebalance_delay_ms=REBALANCE_DELAY_MS))
            except (Unfetchable, subprocess.SubprocessError) as reason:
                raise Unavailable(f"no Kafka broker: {reason}") from None
        yield task


def program_task(feed: Feed, output: Path, peer: Peer | None) -> dict[str, Any]:
    """The task of a program."""
    warm, timed = feed.files(peer.form if peer else "parquet")
    return {
        "workload": feed.workload,
        "warm": warm,
        "timed": timed,
        "input": str(Path(timed[0]).parent),
        "output": str(output),
        "workers": WORKERS,
        "ports": free_ports(WORKERS),
        "within_ms": adverts.WITHIN_MS,
        "disorder_ms": adverts.DISORDER_MS,
        "span_ms": feed.scale.span_ms,
        "warm_progress": feed.progress(feed.warm),
        "all_progress": feed.progress([*feed.warm, *feed.timed]),
        **(peer.options if peer else {}),
    }


def run_program(command: Sequence[str], task: Mapping[str, Any], seconds: float, *, own: bool = False) -> dict[str, Any]:
    """The report of the program. Raises ``Unavailable`` if it fails, does not end in time, or prints no report."""
    lines = run_command([*command, json.dumps(task)], seconds, own=own).splitlines()
    try:
        report: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Unavailable("it ended without a report") from None
    return report
