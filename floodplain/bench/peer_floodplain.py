"""Floodplain as a contender of ``peers``: a program in a process of its own, with the same interface as every peer."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from floodplain.bench import counter
from floodplain.bench.contenders import stock_spark
from floodplain.bench.harness.lanes import Lane
from floodplain.bench.workloads import adverts, counting
from floodplain.clock import SystemClock

WORKLOADS: dict[str, tuple[str, Callable[[int], Callable[[Any, Path], Any]]]] = {
    "count": (counting.ROWS, counter.ours),
    "join": (adverts.ROWS, adverts.start),
}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the workload. ``seconds``: from the start of the first timed epoch to the end of the last, as Spark reports it."""
    clock, home = SystemClock(), Path(task["output"])
    began_s = clock.monotonic_s()
    rows, start = WORKLOADS[task["workload"]]
    with stock_spark.local_session(home) as session:
        lane = Lane("floodplain", home, stock_spark.files(session, rows), start(task["workers"]))
        try:
            lane.feed(_paths(task["warm"]))
            block = lane.feed(_paths(task["timed"]))
        finally:
            lane.stop()
        whole_s = clock.monotonic_s() - began_s
    return {"seconds": block.seconds, "whole_seconds": whole_s, "answer": "parquet", "folder": str(lane.output)}


def _paths(names: Sequence[str]) -> list[Path]:
    return [Path(name) for name in names]


def main() -> None:
    report = measure(json.loads(sys.argv[1]))
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
