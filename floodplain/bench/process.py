"""The benchmark ``process``: a process function in Python with a value, a list and timers per key, on Spark.

The same logic as our ``KeyedProcess``, in Spark's ``transformWithState``, and that very ``StatefulProcessor`` through our
drop-in. Contenders are fed in turn, compared by rows per second, and their output with what DuckDB computes.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from floodplain.bench.contenders import stock_spark
from floodplain.bench.harness.frame import Bench, rounded
from floodplain.bench.harness.lanes import Entry, Files, Lane, Laps, race
from floodplain.bench.workloads.visits import EPOCHS_PER_WINDOW, OUTPUT, ROWS, Visits, closing, events, processed_right
from floodplain.clock import Clock
from floodplain.spark.runtime import stream

OURS = "floodplain"
DROPIN = "dropin"
DROPIN_PANDAS = "dropin_pandas"
TRANSFORM = "transform_with_state"
TRANSFORM_PANDAS = "transform_with_state_in_pandas"
COMPAT = "floodplain.spark.transform_with_state.api"

CHOICES = (DROPIN, DROPIN_PANDAS, TRANSFORM, TRANSFORM_PANDAS)
"""Arguments of ``--only``: contenders. Floodplain always takes part."""

TARGETS = {"vs_transform_with_state": ("at least", 40.0), "dropin_vs_transform_with_state": ("at least", 25.0)}


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 200_000
    """Rows per epoch of Floodplain and of the drop-in; there are as many keys."""
    rounds: int = 5
    """Each is one window of event time: three epochs, in one of which timers fire."""
    slow_rows: int = 40_000
    """Rows per epoch of the others; there are as many keys."""
    slow_rounds: int = 2
    pandas_rows: int = 10_000
    pandas_rounds: int = 1
    only: tuple[str, ...] = ()
    """Some of ``CHOICES``; empty for all."""


FULL = Sizes()
QUICK = Sizes(rounds=3, slow_rows=8_000, slow_rounds=1, pandas_rows=2_000)


def run(sizes: Sizes, clock: Clock, spark: Any = None) -> dict[str, Any]:
    """Runs on ``spark``, or on a local Spark of its own. Temporary files are removed at the end."""
    bench = Bench("process", clock)
    with tempfile.TemporaryDirectory(prefix="floodplain-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with nullcontext(spark) if spark is not None else stock_spark.local_session(home) as session:
            _measure(bench, sizes, home, session)
    bench.judge({name: target for name, target in TARGETS.items() if name in bench.ratios})
    bench.figures["sizes"] = asdict(sizes) | {"only": list(sizes.only)}
    bench.figures["machine"] = {"cores": os.cpu_count(), **{name: version(name) for name in ("pyspark", "duckdb", "pyarrow")}}
    return bench.result()


def _measure(bench: Bench, sizes: Sizes, home: Path, session: Any) -> None:
    rows = stock_spark.files(session, ROWS)
    with ExitStack() as stack:
        entries, lanes, sources = [], {}, {}
        for name, (start, scale, rounds) in _contenders(bench, sizes).items():
            lanes[name] = Lane(name, home, lambda folder: rows(folder).withWatermark("ts", "0 seconds"), start)
            stack.callback(lanes[name].stop)
            sources[name] = Files(home / "files" / name)
            entries.append(Entry(name, lanes[name], _feed(sources[name], scale, rounds)))
        laps = race(bench, "process", entries, sizes.rounds)
        for name, lane in lanes.items():
            lane.feed([sources[name].write(table) for table in closing(len(lane.fed))])
            bench.check(f"{name}_equals_duckdb", processed_right(lane.fed, lane.output))
    _compare(bench, laps)
    bench.figures["process"] = {name: lap.figures() for name, lap in laps.items()}


Contenders = Mapping[str, tuple[Callable[[Any, Path], Any], int, int]]


def _contenders(bench: Bench, sizes: Sizes) -> Contenders:
    """Name → its start function, rows per epoch, number of rounds."""
    contenders: dict[str, tuple[Callable[[Any, Path], Any], int, int]] = {OURS: (_ours, sizes.rows, sizes.rounds)}
    if find_spec(COMPAT) is not None:
        contenders[DROPIN] = (_dropin(pandas=False), sizes.rows, sizes.rounds)
        contenders[DROPIN_PANDAS] = (_dropin(pandas=True), sizes.slow_rows, sizes.slow_rounds)
    else:
        bench.say("the drop-in is not in this version: skipped")
    row, pandas = stock_spark.VisitsProcessor, stock_spark.VisitsPandasProcessor
    contenders[TRANSFORM] = (stock_spark.transform_with_state(row, OUTPUT, "EventTime"), sizes.slow_rows, sizes.slow_rounds)
    contenders[TRANSFORM_PANDAS] = (
        stock_spark.transform_with_state(pandas, OUTPUT, "EventTime", pandas=True),
        sizes.pandas_rows,
        sizes.pandas_rounds,
    )
    return {name: contender for name, contender in contenders.items() if name == OURS or not sizes.only or name in sizes.only}


def _ours(rows: Any, folder: Path) -> Any:
    made = stream(rows).key_by("key").process(Visits())
    return made.write("parquet", path=str(folder / "out")).start(state=str(folder / "state"), slots=stock_spark.CORES)


def _dropin(*, pandas: bool) -> Callable[[Any, Path], Any]:
    def start(rows: Any, folder: Path) -> Any:
        compat = import_module(COMPAT)
        call = compat.transform_with_state_in_pandas if pandas else compat.transform_with_state
        processor = stock_spark.VisitsPandasProcessor() if pandas else stock_spark.VisitsProcessor()
        made = call(rows.groupBy("key"), processor, OUTPUT, "Update", "EventTime")
        writer = made.writeStream.outputMode("update").format("parquet").option("path", str(folder / "out"))
        return writer.option("checkpointLocation", str(folder / "state")).start()

    return start


def _feed(files: Files, scale: int, rounds: int) -> Callable[[int], list[Path]]:
    """One window per round: for the warm-up round, and for the ``rounds`` that this contender runs."""
    rng = np.random.default_rng(11)

    def feed(number: int) -> list[Path]:
        if number > rounds:
            return []
        first = number * EPOCHS_PER_WINDOW
        return [files.write(events(epoch, scale, scale, rng)) for epoch in range(first, first + EPOCHS_PER_WINDOW)]

    return feed


def _compare(bench: Bench, laps: Mapping[str, Laps]) -> None:
    """``vs_…``: Floodplain against Spark; ``dropin_vs_…``: Spark's processor on the drop-in against the same on Spark."""

    pairs = {
        "vs_transform_with_state": (OURS, TRANSFORM),
        "vs_transform_with_state_in_pandas": (OURS, TRANSFORM_PANDAS),
        "dropin_vs_transform_with_state": (DROPIN, TRANSFORM),
        "dropin_pandas_vs_transform_with_state_in_pandas": (DROPIN_PANDAS, TRANSFORM_PANDAS),
    }
    for name, (one, other) in pairs.items():
        if one in laps and other in laps:
            bench.ratios[name] = rounded(laps[one].rows_per_s / laps[other].rows_per_s)
