"""The peer Pathway. Runs in its own environment, without Floodplain; ``bench.peers`` has its input and output.

Reader, operators and writer are Pathway's own, in Rust. The reader streams a folder of CSV files (it has none for Parquet) and
commits what it has read every 1.5 s, which is its default. Persistence is off: state is in memory.
"""

import json
import os
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

QUIET_S = 4.0
BEGAN = time.perf_counter()
TASK = json.loads(sys.argv[1])
os.environ["PATHWAY_THREADS"] = str(TASK["workers"])

import pathway as pw  # noqa: E402 — the number of threads is read when it is imported


class Amount(pw.Schema):
    key: str
    amount: int


class Event(pw.Schema):
    kind: str
    ad: int
    at_ms: int


def count(rows):
    return rows.groupby(pw.this.key).reduce(pw.this.key, n=pw.reducers.count(), total=pw.reducers.sum(pw.this.amount))


def join(rows):
    shown, clicked = rows.filter(pw.this.kind == "impression"), rows.filter(pw.this.kind == "click")
    within = pw.temporal.interval(0, TASK["within_ms"])
    behavior = pw.temporal.common_behavior(cutoff=TASK["span_ms"])
    joined = shown.interval_join(clicked, shown.at_ms, clicked.at_ms, within, shown.ad == clicked.ad, behavior=behavior)
    return joined.select(shown.ad, impression=shown.at_ms, click=clicked.at_ms)


class Feed:
    """Adds the files of the warm-up to the input and, once the answer to them is complete, the timed ones.

    Times are those of the file system: from before the timed files are added to the last write of the answer.
    """

    def __init__(self, folder):
        self.input, self._mark, self.answer = folder / "in", folder / "began", folder / "answer.csv"
        self.input.mkdir()
        self._complete = threading.Semaphore(0)

    def progressed(self, key, row, time, is_addition):
        if is_addition and row["progress"] in (TASK["warm_progress"], TASK["all_progress"]):
            self._complete.release()

    def run(self):
        self._add(TASK["warm"])
        self._wait()
        self._mark.touch()
        self._add(TASK["timed"])
        self._wait()
        seconds = self.answer.stat().st_mtime - self._mark.stat().st_mtime
        report = {"seconds": seconds, "whole_seconds": time.perf_counter() - BEGAN - QUIET_S}
        print(json.dumps({**report, "version": version("pathway"), "answer": "csv"}), flush=True)
        os._exit(0)

    def _add(self, files):
        for path in files:
            os.link(path, self.input / Path(path).name)

    def _wait(self):
        """Until the answer is complete and nothing has been written for ``QUIET_S``."""
        self._complete.acquire()
        written, since = -1, time.perf_counter()
        while time.perf_counter() < since + QUIET_S:
            size = self.answer.stat().st_size
            if size != written:
                written, since = size, time.perf_counter()
            threading.Event().wait(0.1)


def main():
    feed = Feed(Path(TASK["output"]))
    counting = TASK["workload"] == "count"
    rows = pw.io.csv.read(feed.input, schema=Amount if counting else Event, mode="streaming")
    made = count(rows) if counting else join(rows)
    pw.io.csv.write(made, feed.answer)
    progress = made.reduce(progress=pw.reducers.sum(pw.this.n) if counting else pw.reducers.count())
    pw.io.subscribe(progress, on_change=feed.progressed)
    threading.Thread(target=feed.run, daemon=True).start()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
