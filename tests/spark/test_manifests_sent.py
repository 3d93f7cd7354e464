"""Manifests with many runs reach Spark's Python processes as broadcasts, each once, and what changed as broadcasts of its own."""

import pytest

from floodplain.runtime import manifest_feed
from floodplain.spark import engine as spark_engine
from floodplain.spark.runtime import stream
from tests.processes import Count
from tests.spark.test_dataflow import finish, rows_of, source, users

pytestmark = pytest.mark.spark
EPOCHS = 5


def test_tasks_follow_a_manifest_that_they_are_sent_the_changes_of(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_feed, "FEW_RUNS", 1)
    shared, closed = [], []
    close = spark_engine._Broadcast.close
    monkeypatch.setattr(spark_engine._Broadcast, "close", lambda self: (closed.append(self), close(self)))
    share = manifest_feed.ManifestFeed._whole

    def whole(feed, manifest):
        shared.append(manifest.epoch)
        return share(feed, manifest)

    monkeypatch.setattr(manifest_feed.ManifestFeed, "_whole", whole)
    for epoch in range(EPOCHS):
        users(tmp_path / "in", epoch, "ada", "bob", *["cid"] * epoch)
    counted = stream(source(spark, tmp_path / "in")).key_by("user").process(Count()).write("memory")
    query = finish(counted, tmp_path, engine="tasks")
    counts = {user: n for user, n, *_ in sorted(rows_of(query.sink))}
    assert counts == {"ada": EPOCHS, "bob": EPOCHS, "cid": sum(range(EPOCHS))}
    assert len(shared) < EPOCHS - 1, "not in each epoch that began with a state"
    assert closed, "the broadcasts are let go of"
