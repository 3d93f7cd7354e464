"""The drop-in on workers that stay, by options of its writer."""

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import floodplain as fp
from tests.spark.test_dataflow import source, users
from tests.spark.transform_with_state.flows import ROCKS, conf

pytestmark = pytest.mark.spark


class Counts(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.n.get() or (0,))[0] + len(list(rows))
        self.n.update((n,))
        yield Row(user=key[0], n=n)

    def close(self):
        pass


def writer(spark, folder, **options):
    grouped = source(spark, folder / "in").groupBy("user")
    with conf(spark, ROCKS):
        counts = fp.transform_with_state(grouped, Counts(), "user string, n long", "append", "None")
    started = counts.where("n > 1").writeStream.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True)
    return started.options(**{f"floodplain.{name}": value for name, value in options.items()})


@pytest.mark.parametrize("options", [{"workers": 2, "slots": 3}, {"engine": "workers"}])
def test_it_runs_on_as_many_workers_as_asked_for(spark, tmp_path, options):
    users(tmp_path / "in", 0, "ada", "bob", "ada")
    users(tmp_path / "in", 1, "bob", "eve")
    seen = []
    written = writer(spark, tmp_path, **options).foreachBatch(lambda rows, number: seen.append((number, rows.collect())))
    with conf(spark, ROCKS):
        query = written.start()
        query.awaitTermination()
    assert [(number, sorted(map(tuple, rows))) for number, rows in seen] == [(0, [("ada", 2)]), (1, [("bob", 2)])]
    count = options.get("workers", 1)
    assert f"engine workers (long-running tasks of Spark): {count}" in query.floodplain.explain()
    assert query.lastProgress.stateOperators[0].numRowsTotal == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"engine": "tasks", "workers": 2}, "floodplain.workers is for floodplain.engine = workers, and that is 'tasks'"),
        ({"workers": "many"}, "floodplain.workers is 'many': give a whole number"),
        ({"workers": 0}, r"Workers\(count=0\) is not possible"),
        ({"engine": "threads"}, "engine='threads' is not known"),
    ],
)
def test_what_cannot_be_is_refused(spark, tmp_path, options, why):
    users(tmp_path / "in", 0, "ada")
    with conf(spark, ROCKS), pytest.raises(fp.BadInput, match=why):
        writer(spark, tmp_path, **options).format("noop").start()
    assert not spark.streams.active
