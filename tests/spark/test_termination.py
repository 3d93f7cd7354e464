"""Queries that fail or are ended from elsewhere, on a real Spark: what they say, and that they let go of the state at once."""

import re
import subprocess
import sys
import tempfile
import threading
import venv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import floodplain as fp
from floodplain.errors import BadInput, Unavailable, UserError
from floodplain.spark.driver import Driver
from floodplain.spark.java import java_home
from floodplain.spark.runtime import Query, stream
from floodplain.spark.termination import Termination
from floodplain.store.store import Store
from tests.processes import Count, Grumpy, OutOfReach, Picky
from tests.spark.cluster import environment
from tests.spark.files import put_table
from tests.spark.transform_with_state.programs import Wrong
from tests.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def others_undisturbed(spark):
    yield
    for query in spark.streams.active:
        query.stop()


def put_file(folder: Path, number: int, **columns: list[Any]) -> None:
    put_table(folder, number, pa.table(columns))


def rows_of(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def start(spark: Any, folder: Path, process: Any, sink: Any = None, **options: Any) -> Query:
    """With a lease of 30 s: who had to wait for it would be seen to."""
    keyed = stream(rows_of(spark, folder)).key_by("user").process(process, name="it")
    output = keyed.write("memory") if sink is None else keyed.foreach_batch(sink)
    return output.start(state=folder / "state", slots=1, **options)


def let_go(folder: Path) -> int:
    """The epoch of a state that nobody holds."""
    head = Store.open(folder / "state").head
    assert head.lease.expires_ms == 0, "the lease was not released"
    return head.epoch


def ended(query: Query) -> None:
    wait_for("the end", lambda: not query.is_active)


def test_the_error_of_a_function_comes_out_as_itself_and_the_state_is_free_at_once(spark, tmp_path, caplog):
    put_file(tmp_path / "in", 0, user=["ada", "ada"], amount=[1, -3])
    query = start(spark, tmp_path, Picky())
    ended(query)
    assert let_go(tmp_path) == 0, "nothing of the epoch counts"
    wanted = "ValueError in operator it, epoch 1, key Key(user='ada'), row Row(user='ada', amount=-3): negative amount"
    for ask in (query.await_termination, query.process_all_available):
        with pytest.raises(UserError) as told:
            ask()
        assert told.value is query.exception and str(told.value) == wanted
    assert re.search(r'processes\.py", line \d+, in process\n.*\nValueError: negative amount', told.value.__notes__[0], re.DOTALL)
    query.stop()
    again = start(spark, tmp_path, Count(), trigger={"availableNow": True})
    assert again.await_termination() and let_go(tmp_path) == 1
    assert "waiting" not in caplog.text


def test_the_error_of_a_timer(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    query = start(spark, tmp_path, Grumpy())
    with pytest.raises(
        UserError, match=r"^LookupError in operator it, epoch 2, key Key\(user='ada'\), timer at \d+ ms: "
    ) as told:
        query.await_termination()
    assert "in on_timer" in told.value.__notes__[0] and query.exception is told.value
    assert let_go(tmp_path) == 1


def test_the_error_of_a_sink_s_function(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])

    def full(rows: Any, epoch: int) -> None:
        raise OSError("no space left")

    query = start(spark, tmp_path, Count(), full)
    with pytest.raises(UserError, match=r"^OSError in the function .*full of foreach_batch, epoch 1: no space left") as told:
        query.await_termination()
    assert isinstance(told.value.__cause__, OSError)
    head = Store.open(tmp_path / "state").head
    assert (let_go(tmp_path), head.published) == (1, 0), "committed, and to be published by the next start"


def test_an_error_of_ours_that_spark_may_try_again_comes_out_as_itself(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    query = start(spark, tmp_path, OutOfReach(), trigger={"availableNow": True})
    with pytest.raises(Unavailable, match=r"^the tier sleeps") as told:
        query.await_termination()
    assert str(told.value) == "the tier sleeps"
    assert "in process" in told.value.__notes__[0] and let_go(tmp_path) == 0


def test_an_error_of_spark_stays_as_it_is(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    (tmp_path / "in" / "broken.parquet").write_bytes(b"PAR1 is this not")
    query = start(spark, tmp_path, Count(), trigger={"availableNow": True})
    with pytest.raises(StreamingQueryException):
        query.await_termination()
    assert isinstance(query.exception, StreamingQueryException)
    let_go(tmp_path)


def test_a_static_run_raises_it_and_lets_go(spark, tmp_path):
    rows = spark.createDataFrame([("ada", -1)], "user string, amount long")
    with pytest.raises(UserError, match=r"^ValueError in operator picky, .*negative amount") as told:
        stream(rows).key_by("user").process(Picky()).write("memory").start(state=tmp_path / "state", slots=1)
    assert "in process" in told.value.__notes__[0] and let_go(tmp_path) == 0


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "publishing"])
def test_a_query_that_spark_was_told_to_stop_lets_go(spark, tmp_path, busy):
    """Also in the middle of a sink's function: that is cut short, which is no error of it."""
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    reached: list[int] = []

    def sink(rows: Any, epoch: int) -> None:
        reached.append(epoch)
        if busy:
            wait_for("the stop", lambda: rows.sparkSession.sparkContext.parallelize([1], 1).count() == 2)

    query = start(spark, tmp_path, Count(), sink)
    wait_for("the sink", lambda: reached)
    if not busy:
        query.process_all_available()
    (its,) = [active for active in spark.streams.active if active.id == query._query.id]
    its.stop()
    ended(query)
    assert query.exception is None and query.await_termination() and let_go(tmp_path) == 1
    with pytest.raises(BadInput, match="this query has stopped"):
        query.heartbeat(1)


def _told(spark: Any, query: Query) -> None:
    wait_for("the failure", lambda: query.exception)


def _gone(spark: Any, query: Query) -> None:
    wait_for("its end", lambda: not spark.streams.active)


def _any(spark: Any, query: Query) -> None:
    with pytest.raises(StreamingQueryException):
        spark.streams.awaitAnyTermination()


def _stopped(spark: Any, query: Query) -> None:
    for active in spark.streams.active:
        active.stop()


@pytest.mark.parametrize("notice", [_told, _gone, _any, _stopped])
def test_whoever_starts_again_before_the_end_is_over_waits_for_the_end_and_not_for_the_lease(
    spark, tmp_path, monkeypatch, caplog, notice
):
    """The lease is not released before the next start asks for it."""
    spark.streams.resetTerminated()
    asked = threading.Event()
    wait_released, close = Termination.wait_released, Driver.close

    def waits(termination: Termination) -> None:
        asked.set()
        wait_released(termination)

    def closes(driver: Driver) -> None:
        assert asked.wait(60), "the next start did not ask for the end"
        close(driver)

    monkeypatch.setattr(Termination, "wait_released", waits)
    monkeypatch.setattr(Driver, "close", closes)
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1 if notice is _stopped else -1])
    query = start(spark, tmp_path, Picky())
    notice(spark, query)
    again = start(spark, tmp_path, Count(), trigger={"availableNow": True})
    assert again.await_termination() and let_go(tmp_path) == 1
    ended(query)
    assert "waiting" not in caplog.text


def test_where_a_state_cannot_be(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    pipeline = stream(rows_of(spark, tmp_path)).key_by("user").process(Count()).write("memory")
    with pytest.raises(BadInput, match=r"holds something else than a Floodplain store: in\. Choose"):
        pipeline.start(state=tmp_path)
    with pytest.raises(BadInput, match=r"is a file"):
        pipeline.start(state=next((tmp_path / "in").iterdir()))
    with pytest.raises(BadInput, match=r"memory://x would be in the memory of this process.*directory.*fp\.PipelineKit"):
        pipeline.start(state="memory://x")


def test_temporary_folders_are_gone_at_the_end(spark, tmp_path, monkeypatch):
    """Of a query of the drop-in on a state that is thrown away, one that fails included."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    frame = fp.transform_with_state(
        rows_of(spark, tmp_path).groupBy("user"), Wrong(), "user string, what string", "append", "none"
    )

    def fails(rows: Any, epoch: int) -> None:
        assert list(tmp_path.glob("floodplain-temporary-*"))
        raise KeyError("mine")

    query = frame.writeStream.foreachBatch(fails).start()
    with pytest.raises(
        StreamingQueryException, match=r"exception: KeyError in the function .*fails of foreach_batch, epoch 1: 'mine'"
    ):
        query.awaitTermination()
    assert isinstance(query.exception(), StreamingQueryException)
    assert not list(tmp_path.glob("floodplain-*"))


def test_a_checkpoint_beside_no_directory_is_gone_at_the_end(spark, tmp_path, monkeypatch, s3_server):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    seen: list[int] = []
    keyed = stream(rows_of(spark, tmp_path)).key_by("user").process(Picky())
    output = keyed.foreach_batch(lambda rows, epoch: seen.append(len(list(tmp_path.glob("floodplain-checkpoint-*")))))
    state = f"s3://{s3_server.bucket}/ended"
    query = output.start(state=state, slots=1, options=s3_server.options)
    wait_for("an epoch", lambda: seen)
    put_file(tmp_path / "in", 1, user=["ada"], amount=[-1])
    with pytest.raises(UserError, match="negative amount"):
        query.await_termination()
    assert seen == [1] and not list(tmp_path.glob("floodplain-*"))
    assert Store.open(state, options=s3_server.options).head.lease.expires_ms == 0


def test_a_python_of_the_tasks_that_has_nothing_and_a_session_that_is_stopped(tmp_path):
    """In a process of its own, whose PATH leads to an empty environment."""
    java = java_home(tmp_path / "java")
    assert java is not None
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin"
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    given = environment(java)
    given = {name: value for name, value in given.items() if name != "PYSPARK_PYTHON"}
    given["PATH"] = f"{bare}:{given['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.python_process", tmp_path, bare / "python3"],
        env=given, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"refused: the Python of Spark's tasks, {bare / 'python3'}, cannot import" in done.stdout
    assert f"set PYSPARK_PYTHON to {sys.executable} before the session is made" in done.stdout
    assert "cannot import pyarrow (ModuleNotFoundError" in done.stdout
    assert let_go(tmp_path) == 1, "by a process that never waited for its query"
    found = Store.open(tmp_path / "state").snapshot().table("it").to_arrow()
    assert found.select(["user", "n"]).to_pylist() == pa.table({"user": ["ada"], "n": [1]}).to_pylist()
