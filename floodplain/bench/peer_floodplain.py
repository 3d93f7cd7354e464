"""Floodplain as a contender of ``peers``: a process of its own with the same input and output as every peer."""

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


def measure(asked: Mapping[str, Any]) -> dict[str, Any]:
    """``seconds`` are those of the timed files by Spark's own account, from their first epoch to the end of the last."""
    clock, home = SystemClock(), Path(asked["output"])
    began_s = clock.monotonic_s()
    rows, start = WORKLOADS[asked["workload"]]
    with stock_spark.local_session(home) as session:
        lane = Lane("floodplain", home, stock_spark.files(session, rows), start(asked["workers"]))
        try:
            lane.feed(_paths(asked["warm"]))
            block = lane.feed(_paths(asked["timed"]))
        finally:
            lane.stop()
        whole_s = clock.monotonic_s() - began_s
    return {"seconds": block.seconds, "whole_seconds": whole_s, "answer": "parquet", "folder": str(lane.output)}


def _paths(names: Sequence[str]) -> list[Path]:
    return [Path(name) for name in names]


def main() -> None:
    told = measure(json.loads(sys.argv[1]))
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
