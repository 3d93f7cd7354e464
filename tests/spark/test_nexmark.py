"""Each Nexmark query on Spark against DuckDB over the same events: out of order, in several epochs."""

import pyarrow as pa
import pytest

from examples.nexmark.generator import ROWS, Nexmark, closing, write_files
from examples.nexmark.oracle import Changes, Oracle, published
from examples.nexmark.queries import QUERIES
from examples.nexmark.query import table
from floodplain.bench.nexmark import STATEFUL
from floodplain.settings import StoreSettings

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


@pytest.mark.parametrize("name", STATEFUL)
def test_a_query_with_state_gives_the_answer_of_duckdb(name, spark, events, oracle, tmp_path):
    query = QUERIES[name]
    folder = events / ("closed" if query.closes else "open")
    rows = spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1).parquet(str(folder))
    output = query.of(rows).write("parquet", path=str(tmp_path / "out"))
    running = output.start(state=tmp_path / "state", slots=2, trigger={"availableNow": True}, settings=FAST)
    running.await_termination()
    assert running.exception is None
    running.stop()
    assert oracle.differences(name, published(tmp_path / "out"), query.changes) == []


@pytest.mark.parametrize("name", sorted(set(QUERIES) - set(STATEFUL)))
def test_a_query_without_state_gives_the_answer_of_duckdb(name, spark, events, oracle, tmp_path):
    query = QUERIES[name]
    rows = spark.read.schema(ROWS).parquet(str(events / "open"))
    if name == "q0":
        query.of(rows).write("parquet", path=str(tmp_path / "out")).start(state=tmp_path / "state")
        found = published(tmp_path / "out")
    else:
        found = [pa.table(table(rows, query.reads).toArrow())]
    assert oracle.differences(name, found, Changes()) == []
