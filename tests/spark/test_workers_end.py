"""What becomes of workers, and of the state, when Spark is stopped or the driver is killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from floodplain.spark.java import java_home
from floodplain.store.store import Store
from tests.engines import ENGINES
from tests.spark.cluster import environment
from tests.spark.test_runtime import expected, last_output, run, state_of, write_inputs
from tests.spark.test_workers import all_gone, serves
from tests.waiting import wait_for

pytestmark = pytest.mark.spark


@contextmanager
def driver(folder: Path, end: str) -> Iterator[tuple[Any, set[int]]]:
    """A driver in a process of its own, and the processes of its two workers, which have processed all that is there."""
    java = java_home(folder / "java")
    assert java is not None
    command = [sys.executable, "-m", "tests.spark.workers_process", str(folder), end]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment(java), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
        )
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line, (folder / "log").read_text()[-2000:]
        yield process, set(json.loads(line))
    finally:
        process.kill()
        process.wait()


def test_when_spark_is_stopped_the_query_ends_and_its_workers_with_it(tmp_path):
    rows = write_inputs(tmp_path, 2)
    with driver(tmp_path, "stop") as (process, pids):
        assert all(map(serves, pids))
        process.stdin.write("\n")
        assert json.loads(process.stdout.readline()) == {"active": False, "exception": "None"}
        assert all_gone(pids)
    assert Store.open(tmp_path / "state").head.lease.expires_ms == 0
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)


def test_workers_outlive_a_killed_driver_by_seconds_and_the_next_start_goes_on(spark, tmp_path):
    """With either engine: a state does not know which one has written it."""
    write_inputs(tmp_path, 2)
    with driver(tmp_path, "killed") as (process, pids):
        assert all(map(serves, pids))
        process.kill()
        wait_for("the end of the workers", lambda: all_gone(pids), 30)
    for number, engine in enumerate(ENGINES):
        rows = write_inputs(tmp_path, 1, first=2 + number)
        run(spark, tmp_path, engine=engine)
        assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)
