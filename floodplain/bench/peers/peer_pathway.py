"""The peer Pathway. Runs in its own environment, without Floodplain; ``bench.peers`` has its input and output.

Reader, operators and writer are Pathway's own, in Rust. The reader streams a folder of CSV files (it has none for Parquet) and
commits what it has read every 1.5 s, which is its default. Persistence is off: state lives in memory.
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
ASKED = json.loads(sys.argv[1])
os.environ["PATHWAY_THREADS"] = str(ASKED["workers"])

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
    within = pw.temporal.interval(0, ASKED["within_ms"])
    behavior = pw.temporal.common_behavior(cutoff=ASKED["span_ms"])
    joined = shown.interval_join(clicked, shown.at_ms, clicked.at_ms, within, shown.ad == clicked.ad, behavior=behavior)
    return joined.select(shown.ad, impression=shown.at_ms, click=clicked.at_ms)


class Feed:
    """Hands over the files of the warm-up, then, when the answer to them is complete, those that are timed.

    The clock is that of the file system: from the moment the timed files are there to the last write of the answer.
    """

    def __init__(self, folder):
        self.input, self._mark, self.answer = folder / "in", folder / "began", folder / "answer.csv"
        self.input.mkdir()
        self._through = threading.Semaphore(0)

    def progressed(self, key, row, time, is_addition):
        if is_addition and row["progress"] in (ASKED["warm_progress"], ASKED["all_progress"]):
            self._through.release()

    def run(self):
        self._hand(ASKED["warm"])
        self._settle()
        self._mark.touch()
        self._hand(ASKED["timed"])
        self._settle()
        seconds = self.answer.stat().st_mtime - self._mark.stat().st_mtime
        told = {"seconds": seconds, "whole_seconds": time.perf_counter() - BEGAN - QUIET_S}
        print(json.dumps({**told, "version": version("pathway"), "answer": "csv"}), flush=True)
        os._exit(0)

    def _hand(self, files):
        for path in files:
            os.link(path, self.input / Path(path).name)

    def _settle(self):
        """Wait until the answer is complete and nothing has been written for a while."""
        self._through.acquire()
        written, since = -1, time.perf_counter()
        while time.perf_counter() < since + QUIET_S:
            size = self.answer.stat().st_size
            if size != written:
                written, since = size, time.perf_counter()
            threading.Event().wait(0.1)


def main():
    feed = Feed(Path(ASKED["output"]))
    counting = ASKED["workload"] == "count"
    rows = pw.io.csv.read(feed.input, schema=Amount if counting else Event, mode="streaming")
    made = count(rows) if counting else join(rows)
    pw.io.csv.write(made, feed.answer)
    progress = made.reduce(progress=pw.reducers.sum(pw.this.n) if counting else pw.reducers.count())
    pw.io.subscribe(progress, on_change=feed.progressed)
    threading.Thread(target=feed.run, daemon=True).start()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
