"""Staged output without Spark, and faults between any two steps of publishing it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.clock import SystemRandomness
from floodplain.metrics import Counters
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.tiers.memory import MemoryBlobs, Space

APP = "0123456789abcdef"
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


class Crash(BaseException):
    """The process died here."""


def local_blobs(folder: Any) -> Blobs:
    return DirectoryBlobs(folder, sync=True, randomness=SystemRandomness(), counters=Counters())


def memory_blobs() -> Blobs:
    return MemoryBlobs("memory://staged", Counters(), Space())


def stage(blobs: Blobs, epoch: int, *files: pa.Table) -> list[str]:
    """As tasks do it; the names do not sort as the tasks finished."""
    names = []
    for number, rows in enumerate(files):
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="snappy")
        names.append(paths.staged(0, f"1-{epoch}-0", "count", "main", f"{number}-{100 - number}"))
        blobs.put(names[-1], sink.getvalue())
    return names


def rows(epoch: int, slot: int, count: int = 3) -> pa.Table:
    return pa.table({"user": [f"u{slot}_{n}" for n in range(count)], "n": [epoch * 100 + n for n in range(count)]}, schema=SCHEMA)


Step = tuple[Any, str]
"""A class or module, and the name of a function in it."""


def crash_points(steps: Sequence[Step], monkeypatch: Any, act: Callable[[int], None]) -> Iterator[tuple[int, str]]:
    """Run ``act(1)``, ``act(2)``, …, with a crash before, then after, its k-th step, until it has no k-th step.

    Yields the run that crashed, and where, for the caller to recover and check.
    """
    runs = itertools.count(1)
    for after in (False, True):
        for wanted in itertools.count(1):
            taken, run = itertools.count(1), next(runs)
            with monkeypatch.context() as patch:
                for place, name in steps:
                    patch.setattr(place, name, _crashing(getattr(place, name), taken, wanted, after))
                try:
                    act(run)
                except Crash as crash:
                    where = f"{'after' if after else 'before'} step {wanted}, {crash}"
                else:
                    break
            yield run, where


def _crashing(function: Callable[..., Any], taken: Iterator[int], wanted: int, after: bool) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        now = next(taken) == wanted
        if now and not after:
            raise Crash(function.__name__)
        result = function(*args, **options)
        if now:
            raise Crash(function.__name__)
        return result

    return call
