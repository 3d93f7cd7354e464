"""Each Nexmark query on Spark against DuckDB over the same events: out of order, in several epochs."""

import pytest
from pyspark.sql import functions as F  # noqa: N812

from examples.nexmark.generator import ROWS, Nexmark, closing, write_files
from examples.nexmark.oracle import Oracle, published
from examples.nexmark.queries import QUERIES
from floodplain.bench.nexmark import STATEFUL, STATELESS
from floodplain.settings import StoreSettings
from floodplain.store.store import Store
from tests.short_form import some

pytestmark = pytest.mark.spark
STREAM = Nexmark(seed=5, rate=200.0, disorder_ms=3000, disorder_share=0.3)
EVENTS = 3000
FAST = StoreSettings(lease_ms=1500)


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Files of events, in two folders: as they are, and followed by others that let the watermark pass them."""
    home = tmp_path_factory.mktemp("nexmark")
    parts = list(STREAM.slices(EVENTS, EVENTS // 2))
    write_files(parts, home / "open")
    write_files([*parts, *closing(STREAM, EVENTS)], home / "closed")
    return home


@pytest.fixture(scope="module")
def oracle():
    return Oracle(STREAM.events(0, EVENTS))


def run(spark, name, events, folder):
    """The query over a stream of files, to its end."""
    query = QUERIES[name]
    rows = (
        spark.readStream.schema(ROWS)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(events / ("closed" if query.closes else "open")))
    )
    output = query.into(rows, folder / "out")
    running = output.start(state=folder / "state", slots=2, trigger={"availableNow": True}, settings=FAST)
    running.await_termination()
    assert running.exception is None
    running.stop()
    return running


@pytest.mark.parametrize("name", some(STATEFUL, "q3", "q5", "q9", "q11", "q16", "q19"))
def test_a_query_with_state_gives_the_answer_of_duckdb(name, spark, events, oracle, tmp_path):
    run(spark, name, events, tmp_path)
    assert oracle.differences(name, published(tmp_path / "out"), QUERIES[name].changes) == []


@pytest.mark.parametrize("name", STATELESS)
def test_a_query_without_state_gives_the_answer_of_duckdb(name, spark, events, oracle, tmp_path):
    running = run(spark, name, events, tmp_path)
    found = published(tmp_path / "out")
    assert oracle.differences(name, found, QUERIES[name].changes) == []
    assert len(running.progress) == 2 and sum(map(len, found)) == len(oracle.answer(name)) > 0
    assert not Store.open(tmp_path / "state").head.schemas, "it keeps nothing"
    if QUERIES[name].partition_by:
        check_folders(spark, oracle, tmp_path / "out")


def check_folders(spark, oracle, out):
    """Spark finds the columns of q10 that are in the names of folders."""
    rows = spark.read.schema("price long, dt string, hm string").parquet(str(out))
    found = {(row.dt, row.hm): row.n for row in rows.groupBy("dt", "hm").agg(F.count("price").alias("n")).collect()}
    wanted = oracle.sql("select strftime(dateTime, '%Y-%m-%d'), strftime(dateTime, '%H:%M'), count(*) from bid group by all")
    assert found == {(dt, hm): n for dt, hm, n in zip(*wanted.to_pydict().values(), strict=True)} and len(found) > 1
    assert all((out / f"dt={dt}" / f"hm={hm.replace(':', '%3A')}").is_dir() for dt, hm in found)
