"""Whole pipelines into Delta and Kafka whose driver is killed: what readers find equals a batch computation."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.kafka_broker import Unfetchable, connector_jars, create_topic
from tests.spark.test_pipeline import expected, wait_for_epoch, write_inputs
from tests.spark.test_sinks_kafka import consume

pytestmark = pytest.mark.spark


def run(settings: dict[str, Any], kill_after: int | None = None) -> None:
    """A driver to its end, or killed once the log shows about that many epochs."""
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
        wait_for_epoch(Path(settings["folder"]), process, kill_after)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def steps_of(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The last row of each user. Raises if a row came twice: ``n`` grows from row to row of a user."""
    assert not [row for row, times in Counter((row["user"], row["n"]) for row in rows).items() if times > 1], "published twice"
    newest: dict[str, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda row: row["n"]):
        newest[row["user"]] = (row["n"], row["total"])
    return newest


def test_a_killed_driver_and_a_delta_table(tmp_path):
    rows = write_inputs(tmp_path, 5)
    settings = {"folder": str(tmp_path), "sink": "delta", "options": {"path": str(tmp_path / "table")}}
    run(settings, kill_after=1)
    run(settings)
    table = DeltaTable(tmp_path / "table")
    assert steps_of(table.to_pyarrow_table().to_pylist()) == expected(rows)
    assert table.version() == 5, "each input file is an epoch, each epoch a commit"


@pytest.mark.kafka
def test_a_killed_driver_and_a_lost_checkpoint_between_two_topics(kafka, tmp_path):
    """Spark's own connector as the source. The checkpoint is deleted after the kill, and rebuilt from the log."""
    try:
        jars = [str(jar) for jar in connector_jars()]
    except Unfetchable as reason:
        warnings.warn(f"no Kafka source: {reason}", stacklevel=1)
        pytest.skip(str(reason))
    source, target = create_topic(kafka, "clicks"), create_topic(kafka, "counts")
    settings = {"folder": str(tmp_path), "jars": jars, "servers": kafka, "topic": source, "per_epoch": 300}
    settings |= {"sink": "kafka", "options": {"servers": kafka, "topic": target, "key": "user"}}
    sent = send(kafka, source, seed=1, count=1500)
    run(settings, kill_after=1)
    shutil.rmtree(tmp_path / "state" / "checkpoint")
    sent += send(kafka, source, seed=2, count=300)
    run(settings)
    found = [json.loads(message.value()) for message in consume(kafka, target)]
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
