"""``open`` and ``close`` on a real Spark: once per worker process and start, never on the driver."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.settings import StoreSettings
from tests.spark.files import put_table

pytestmark = pytest.mark.spark
ONCE = {"availableNow": True}


def note(folder: Path, what: str) -> None:
    with (folder / f"{os.getpid()}.log").open("a") as log:
        log.write(what + "\n")


class Keyed(fp.KeyedProcess):
    output = "user string, worker long, uses long"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, ctx: Any) -> dict[str, int]:
        note(self.folder, "open")
        return {"uses": 0}

    def close(self, resource: dict[str, int]) -> None:
        note(self.folder, f"close {resource['uses']}")

    def process(self, key, rows, ctx):
        ctx.resource["uses"] += 1
        yield key.user, os.getpid(), ctx.resource["uses"]


class Batched(fp.KeyedBatchProcess):
    output = "user string, worker long, uses long"
    __init__, open, close = Keyed.__init__, Keyed.open, Keyed.close

    def process(self, batch, ctx):
        keys = len(batch.keys)
        ctx.resource["uses"] += keys
        same = {"worker": os.getpid(), "uses": ctx.resource["uses"]}
        return pa.table({"user": batch.keys["user"], **{name: pa.array([value] * keys) for name, value in same.items()}})


def run(spark: Any, folder: Path, kind: type) -> pa.Table:
    rows = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    stream = fp.stream(rows).key_by("user").process(kind(folder / "log"), name="served")
    query = stream.write("memory").start(state=folder / "state", slots=2, trigger=ONCE, settings=StoreSettings(lease_ms=1500))
    query.await_termination()
    return query.sink.table()


def events(folder: Path) -> dict[int, list[str]]:
    return {int(path.stem): path.read_text().split("\n")[:-1] for path in (folder / "log").iterdir()}


@pytest.mark.parametrize("kind", [Keyed, Batched])
def test_it_opens_once_per_worker_process_over_epochs(spark, tmp_path, kind, engine):
    """Workers that stay close it when the query ends, and processes of Spark's at the next start."""
    (tmp_path / "log").mkdir()
    for number in range(4):
        put_table(tmp_path / "in", number, pa.table({"user": [f"u{n}" for n in range(6)]}))
    made = run(spark, tmp_path, kind)
    assert len(made) == 24
    workers = Counter(made["worker"].to_pylist())
    assert os.getpid() not in events(tmp_path), "the driver runs no task"
    assert set(workers) <= set(events(tmp_path))
    closes = {worker: [f"close {uses}"] if engine == "workers" else [] for worker, uses in workers.items()}
    assert all(told == ["open", *closes[worker]] for worker, told in events(tmp_path).items())
    if kind is Keyed:
        # One counter goes through all epochs of a process.
        for worker, uses in workers.items():
            assert sorted(row["uses"] for row in made.to_pylist() if row["worker"] == worker) == list(range(1, uses + 1))
    put_table(tmp_path / "in", 4, pa.table({"user": ["u0", "u1"]}))
    again = Counter(run(spark, tmp_path, kind)["worker"].to_pylist())
    told = {worker: each[: -1 if engine == "workers" and worker in again else None] for worker, each in events(tmp_path).items()}
    for worker in set(again) & set(workers):
        assert told[worker] == ["open", f"close {workers[worker]}", "open"], "another start closes what the one before opened"
    assert all(told[worker] == ["open"] for worker in set(again) - set(workers))
