"""The readers of state as data sources of Spark: registered, refused, read while the query runs."""

import json

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import floodplain as fp


class Counts(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("numberOfRows", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.n.get()[0] if self.n.exists() else 0) + len(list(rows))
        self.n.update((n,))
        yield Row(user=key[0], n=n)


def start(spark, folder, function, **options):
    rows = spark.readStream.schema("user string").json(str(folder / "input"))
    frame = fp.transform_with_state(rows.groupBy("user"), Counts(), "user string, n long", "update", "None")
    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(folder / "state"))
    return writer.options(**options).foreachBatch(function).start()


def give(folder, number: int, *users: str) -> None:
    (folder / "input").mkdir(exist_ok=True)
    hidden = folder / "input" / f".{number}.json"
    hidden.write_text("\n".join(json.dumps({"user": user}) for user in users))
    hidden.rename(folder / "input" / f"{number}.json")


def counts(spark, folder, **options) -> dict[str, int]:
    reader = spark.read.format("floodplain-statestore").option("stateVarName", "numberOfRows").options(**options)
    return {row.user: row.n for row in reader.load(str(folder / "state")).selectExpr("key.user", "value.n").collect()}


@pytest.fixture
def state(spark, tmp_path):
    """Two batches; what ``foreachBatch`` saw of the state and of its metadata in the second."""
    seen = {}

    def look(rows, batch):
        if batch == 1:
            seen["counts"] = counts(rows.sparkSession, tmp_path)
            metadata = rows.sparkSession.read.format("floodplain-state-metadata").load(str(tmp_path / "state"))
            seen["batches"] = [tuple(row) for row in metadata.select("minBatchId", "maxBatchId", "numPartitions").collect()]

    give(tmp_path, 0, "ada", "bob", "ada")
    query = start(spark, tmp_path, look)
    try:
        query.processAllAvailable()
        give(tmp_path, 1, "bob")
        query.processAllAvailable()
        seen["running"] = counts(spark, tmp_path)
    finally:
        query.stop()
    return tmp_path, seen


def test_state_is_read_while_the_query_runs_and_when_it_has_stopped(spark, state):
    folder, seen = state
    assert seen["counts"] == {"ada": 2, "bob": 1}, "in foreachBatch, that of the batch before"
    assert seen["batches"] == [(0, 0, 1)]
    assert seen["running"] == counts(spark, folder) == {"ada": 2, "bob": 2}
    assert counts(spark, folder, batchId=0) == {"ada": 2, "bob": 1}

    other = spark.newSession()
    fp.register_state_sources(other)
    fp.register_state_sources(other)
    assert counts(other, folder) == {"ada": 2, "bob": 2}

    with pytest.raises(AnalysisException, match=r"\[STDS_INVALID_OPTION_VALUE.WITH_MESSAGE\].*There are: numberOfRows"):
        spark.read.format("floodplain-statestore").load(str(folder / "state"), stateVarName="numberofrows")
    with pytest.raises(AnalysisException, match=r"\[STDS_REQUIRED_OPTION_UNSPECIFIED\] 'path' must be specified"):
        spark.read.format("floodplain-state-metadata").load().collect()


def test_a_new_state_has_as_many_slots_as_a_shuffle_has_partitions(spark, tmp_path):
    give(tmp_path, 0, "ada")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    for partitions in ("3", "2"):
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        try:
            query = start(spark, tmp_path, lambda rows, batch: None)
            query.processAllAvailable()
            query.stop()
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", before)
        give(tmp_path, 1, "bob")
        metadata = spark.read.format("floodplain-state-metadata").load(str(tmp_path / "state"))
        assert [row.numPartitions for row in metadata.collect()] == [3], "once it has them, it keeps them"


def test_a_session_gets_the_readers_whichever_session_is_active(spark):
    fp.register_state_sources(spark)
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    sessions.setActiveSession(spark._jsparkSession)
    other = spark.newSession()
    fp.register_state_sources(other)
    assert sessions.getActiveSession().get().sessionUUID() == spark._jsparkSession.sessionUUID()
    sessions.setActiveSession(other._jsparkSession)
    with pytest.raises(AnalysisException, match=r"\[STDS_REQUIRED_OPTION_UNSPECIFIED\] 'path' must be specified"):
        other.read.format("floodplain-state-metadata").load().collect()
    sessions.setActiveSession(spark._jsparkSession)
