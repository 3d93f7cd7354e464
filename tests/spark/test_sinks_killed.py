"""Whole pipelines into Delta and Kafka whose driver is killed: what readers find equals a batch computation."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from floodplain.errors import StoreNotFound
from floodplain.spark.runtime import stream
from floodplain.store.store import Store
from tests.kafka_broker import Unfetchable, connector_jars, create_topic
from tests.processes import Count
from tests.sinks.test_kafka import consume
from tests.spark.test_runtime import FAST, ONCE, expected, source, write_inputs

pytestmark = pytest.mark.spark


def run(settings: dict[str, Any], kill_after: int | None = None) -> None:
    """A driver to its end, or killed once that many epochs are committed; where exactly the kill falls does not matter."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.sink_process", json.dumps(settings)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if kill_after is None:
        assert "done" in process.communicate(timeout=180)[0]
        return
    try:
        while committed(Path(settings["folder"])) < kill_after:
            assert process.poll() is None, "the driver ended by itself"
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def committed(folder: Path) -> int:
    try:
        return Store.open(folder / "state").head.epoch
    except StoreNotFound:
        return 0


def steps_of(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The last row of each user. Raises if a row came twice: ``n`` grows from row to row of a user."""
    assert not [row for row, times in Counter((row["user"], row["n"]) for row in rows).items() if times > 1], "published twice"
    newest: dict[str, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda row: row["n"]):
        newest[row["user"]] = (row["n"], row["total"])
    return newest


@pytest.mark.soak
def test_a_killed_driver_and_a_delta_table(spark, tmp_path):
    rows = write_inputs(tmp_path, 3)
    settings = {"folder": str(tmp_path), "sink": "delta", "options": {"path": str(tmp_path / "table")}}
    run(settings, kill_after=1)
    query = (
        stream(source(spark, tmp_path))
        .key_by("user")
        .process(Count())
        .write("delta", path=tmp_path / "table")
        .start(state=tmp_path / "state", slots=3, trigger=ONCE, settings=FAST)
    )
    query.await_termination()
    assert query.exception is None
    query.stop()
    table = DeltaTable(tmp_path / "table")
    assert steps_of(table.to_pyarrow_table().to_pylist()) == expected(rows)
    assert table.version() == 3, "each input file is an epoch, each epoch a commit"


@pytest.mark.kafka
def test_a_killed_driver_and_a_lost_checkpoint_between_two_topics(kafka, tmp_path):
    """Spark's own connector as the source. The checkpoint is deleted after the kill, and rebuilt from the log."""
    try:
        jars = [str(jar) for jar in connector_jars()]
    except Unfetchable as reason:
        warnings.warn(f"no Kafka source: {reason}", stacklevel=1)
        pytest.skip(str(reason))
    clicks, counts = create_topic(kafka, "clicks"), create_topic(kafka, "counts")
    settings = {"folder": str(tmp_path), "jars": jars, "servers": kafka, "topic": clicks, "per_epoch": 400}
    settings |= {"sink": "kafka", "options": {"servers": kafka, "topic": counts, "key": "user"}}
    sent = send(kafka, clicks, seed=1, count=1200)
    run(settings, kill_after=1)
    assert committed(tmp_path) < 3, "the rest is for the second driver"
    shutil.rmtree(tmp_path / "state" / "checkpoint")
    sent += send(kafka, clicks, seed=2, count=200)
    run(settings)
    found = [json.loads(message.value()) for message in consume(kafka, counts)]
    totals = {user: (sum(1 for u, _ in sent if u == user), sum(a for u, a in sent if u == user)) for user, _ in sent}
    assert steps_of(found) == totals


def send(servers: str, topic: str, seed: int, count: int) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    rows = [
        (f"u{user}", int(amount)) for user, amount in zip(rng.integers(0, 40, count), rng.integers(0, 100, count), strict=True)
    ]
    producer = Producer({"bootstrap.servers": servers})
    for user, amount in rows:
        producer.produce(topic, key=user, value=str(amount))
    producer.flush()
    return rows
