"""Lookups on Spark into the state of another pipeline, which goes on meanwhile."""

from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.errors import StoreNotFound
from floodplain.spark.runtime import stream
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.versions.retention import pins
from tests.spark.test_dataflow import finish, rows_of, source, users

pytestmark = pytest.mark.spark


def promote(place: str, define: bool = False) -> None:
    """One more epoch of the other state: everybody is one level higher."""
    store = Store.open(place, create=define)
    with store.writer("other") as writer:
        if define:
            writer.define(value_table("levels", {"name": pa.string()}, {"level": pa.int64()}))
        level = store.head.epoch + 1
        writer.put("levels", pa.table({"name": ["ada", "bob"], "level": [level, level]}))


def promoting(place: str):
    """A step whose tasks change the other state while they run, before a row of theirs is looked up."""

    def read(batches):
        promote(place)
        yield from batches

    return lambda rows: rows.mapInArrow(read, rows.schema)


def levels(spark, folder: Path, place: Path):
    rows = stream(source(spark, folder / "in")).transform(promoting(str(place)))
    return rows.lookup(place, "levels", {"user": "name"})


def test_an_epoch_sees_one_epoch_of_a_state_that_goes_on(spark, tmp_path):
    place = tmp_path / "other"
    promote(str(place), define=True)
    users(tmp_path / "in", 0, "ada", "bob", "cid")
    users(tmp_path / "in", 1, "ada")
    query = finish(levels(spark, tmp_path, place).write("memory"), tmp_path)
    assert sorted(rows_of(query.sink), key=repr) == [("ada", 1, 1), ("ada", 1, 2), ("bob", 1, 1), ("cid", 1, None)]
    other, ours = Store.open(place), Store.open(tmp_path / "state")
    assert other.head.epoch == 3, "each epoch changed it before it looked"
    seen = [ours.at(epoch).table("lookup__seen").to_arrow()["value"].to_pylist() for epoch in (1, 2)]
    assert seen == [[1, 1], [2, 2]]
    held, _ = pins.live(other.history, 0, other.history.blobs.list(paths.PINS))
    assert [record.mark.epoch for record in held] == [2], "the last one that was looked at"


def test_a_state_that_is_not_there_is_refused_before_anything_runs(spark, tmp_path):
    users(tmp_path / "in", 0, "ada")
    with pytest.raises(StoreNotFound, match=r"lookup: there is no state at .*nowhere: start the pipeline that keeps it first"):
        levels(spark, tmp_path, tmp_path / "nowhere").write("memory").start(state=tmp_path / "state")
    assert not (tmp_path / "nowhere").exists()
