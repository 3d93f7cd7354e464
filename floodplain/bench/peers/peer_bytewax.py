"""The peer Bytewax. Runs in its own environment, without Floodplain; ``bench.peers`` has its input and output.

A source reads Arrow batches, which are distributed to the workers and turned into Python values there. Per-key state is a
``StatefulBatchLogic``, the operator that all others are built on. The sink writes Parquet. Recovery is off: state is in memory.
"""

import json
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right, insort
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import bytewax.operators as op
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

BATCH_ROWS = 10_000


class Batches(StatelessSourcePartition):
    """The files' rows as Arrow batches, all from the first worker."""

    def __init__(self, files):
        self._batches = (batch for path in files for batch in pq.ParquetFile(path).iter_batches(BATCH_ROWS))

    def next_batch(self):
        return [next(self._batches)]


class Files(DynamicSource):
    def __init__(self, files):
        self._files = files

    def build(self, step_id, worker_index, worker_count):
        return Batches([] if worker_index else self._files)


class Writer(StatelessSinkPartition):
    """Writes rows to Parquet files, with their output time by a clock that all processes of a machine share."""

    def __init__(self, task, columns, index):
        self._folder, self._columns, self._index = Path(task["output"]), columns, index
        self._rows, self._came, self._count = [], [], 0

    def write_batch(self, items):
        self._rows += items
        self._came += [int(time.perf_counter() * 1000)] * len(items)
        if len(self._rows) >= 10 * BATCH_ROWS:
            self._flush()

    def _flush(self):
        arrays = [pa.array(column) for column in (*zip(*self._rows, strict=True), self._came)]
        pq.write_table(pa.table(arrays, [*self._columns, "came_ms"]), self._folder / f"{self._index}-{self._count}.parquet")
        self._rows, self._came, self._count = [], [], self._count + 1

    def close(self):
        if self._rows:
            self._flush()


class Parquet(DynamicSink):
    def __init__(self, task, columns):
        self._task, self._columns = task, columns

    def build(self, step_id, worker_index, worker_count):
        return Writer(self._task, self._columns, worker_index)


class Count(StatefulBatchLogic):
    __slots__ = ("n", "total")

    def __init__(self, state):
        self.n, self.total = state or (0, 0)

    def on_batch(self, values):
        self.n += len(values)
        self.total += sum(values)
        return ((self.n, self.total),), False

    def snapshot(self):
        return self.n, self.total


class Join(StatefulBatchLogic):
    """Buffers both sides in event-time order. Rows older than the newest time of a batch, less a slack, are removed.

    The slack is large because workers are not synchronised: rows of a key may be far out of order.
    """

    __slots__ = ("clicks", "impressions")
    within_ms = 0
    slack_ms = 60_000

    def __init__(self, state):
        self.impressions, self.clicks = state or ([], [])

    def on_batch(self, values):
        within, impressions, clicks, pairs = self.within_ms, self.impressions, self.clicks, []
        for impression, at in values:
            if impression:
                pairs += [(at, click) for click in clicks[bisect_left(clicks, at) : bisect_right(clicks, at + within)]]
                insort(impressions, at)
            else:
                pairs += [
                    (shown, at) for shown in impressions[bisect_left(impressions, at - within) : bisect_right(impressions, at)]
                ]
                insort(clicks, at)
        oldest = at - within - self.slack_ms
        for side in (impressions, clicks):
            if side and side[0] < oldest:
                del side[: bisect_left(side, oldest)]
        return pairs, False

    def snapshot(self):
        return list(self.impressions), list(self.clicks)


def counts(batch):
    return zip(batch.column("key").to_pylist(), batch.column("amount").to_pylist(), strict=True)


def adverts(batch):
    ads = batch.column("ad").cast(pa.string()).to_pylist()
    kinds = [kind == "impression" for kind in batch.column("kind").to_pylist()]
    return zip(ads, zip(kinds, batch.column("at_ms").to_pylist(), strict=True), strict=True)


def flow(task):
    count = task["workload"] == "count"
    Join.within_ms = task["within_ms"]
    made = Dataflow("peer")
    batches = op.redistribute("deal", op.input("read", made, Files([*task["warm"], *task["timed"]])))
    rows = op.flat_map("rows", batches, counts if count else adverts)
    results = op.stateful_batch("state", rows, Count if count else Join)
    if count:
        flat = op.map("flatten", results, lambda item: (item[0], *item[1]))
        op.output("write", flat, Parquet(task, ["key", "n", "total"]))
    else:
        flat = op.map("flatten", results, lambda item: (int(item[0]), *item[1]))
        op.output("write", flat, Parquet(task, ["ad", "impression", "click"]))
    return made


def main():
    task = json.loads(sys.argv[1])
    addresses = [f"127.0.0.1:{port}" for port in task["ports"]]
    if len(sys.argv) > 2:
        cluster_main(flow(task), addresses, int(sys.argv[2]))
        return
    began = time.perf_counter()
    with ExitStack() as stack:
        command = [sys.executable, "-P", __file__, sys.argv[1]]
        workers = [stack.enter_context(subprocess.Popen([*command, str(number)])) for number in range(len(addresses))]
        codes = [worker.wait() for worker in workers]
    if any(codes):
        sys.exit(f"workers ended with {codes}")
    report = {"whole_seconds": time.perf_counter() - began, "version": version("bytewax"), "answer": "parquet"}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
