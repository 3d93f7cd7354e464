"""Queries on workers that stay: started, refused, failing, stopped, rescaled, beside others; and what is left of them."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import create_connection, create_server
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import floodplain as fp
from floodplain.keys import hash_columns
from floodplain.settings import StoreSettings
from floodplain.spark.runtime import Query
from floodplain.spark.worker_jobs import SparkLauncher
from floodplain.spark.worker_settings import check_settings, free_task_slots, release, reserved
from tests.processes import ByCount, Count, Grumpy, Held, Picky, Stuck, Whereabouts
from tests.spark.test_dataflow import put_file, rows_of, users
from tests.spark.test_runtime import ONCE, expected, source, state_of, write_inputs
from tests.waiting import wait_for
from tests.workers.certificates import certificates

pytestmark = pytest.mark.spark
FAST = StoreSettings(lease_ms=3000)
ROWS = "user string, amount long"


@pytest.fixture(autouse=True)
def others_undisturbed(spark, tmp_path):
    """Nothing of a test that fails is left running."""
    yield
    (tmp_path / "go").touch()
    for query in spark.streams.active:
        query.stop()


def start(spark: Any, folder: Path, process: Any = None, workers: int = 2, **options: Any) -> Query:
    rows = fp.stream(source(spark, folder)).key_by("user").process(process or Count(), name="count")
    given = {"slots": 3, "settings": FAST, "engine": fp.Workers(count=workers), **options}
    return rows.write("parquet", path=str(folder / "out")).start(state=folder / "state", **given)


def pids_of(query: Query, workers: int = 2) -> set[int]:
    """The processes of its workers, once all are there."""
    engine: Any = query._driver._engine
    return set(wait_for("all workers", lambda: len(engine.pids) == workers and engine.pids).values())


def serves(pid: int) -> bool:
    """Whether the process still is a worker, which listens for those who ask for rows. Spark may keep the process itself, idle,
    for its next tasks."""
    try:
        files = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:] if files else []
    listening = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[3] == "0A"}
    return not listening.isdisjoint(files)


def all_gone(pids: set[int]) -> bool:
    return not any(map(serves, pids))


def test_a_query_runs_on_workers_and_says_so(spark, tmp_path):
    """A restart begins as soon as the query before it has ended: its workers have given their cores back."""
    for files, slots in ((3, 3), (2, 2)):
        rows = write_inputs(tmp_path, files, first=0 if files == 3 else 3)
        query = start(spark, tmp_path, workers=3, slots=slots)
        pids = pids_of(query, 3)
        assert all(map(serves, pids)) and os.getpid() not in pids
        query.process_all_available()
        text = query.explain()
        query.stop()
        assert all_gone(pids) and not spark.sparkContext.statusTracker().getActiveJobsIds()
        assert state_of(tmp_path) == expected(rows)
    assert "engine workers (long-running tasks of Spark): 3" in text
    assert "input, native: workers read the files" in text
    assert "each epoch: 2 slots over 1024 key groups · no shuffle" in text
    assert "reads (1), exchange: to workers by user" in text
    assert "to workers by user" in query.explain("mermaid") and ">to workers</text>" in query.explain("svg")


def test_a_function_that_fails_ends_the_query_at_once_and_leaves_no_worker(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada", "bob"], amount=[1, 2])
    query = start(spark, tmp_path, Picky())
    pids = pids_of(query)
    query.process_all_available()
    put_file(tmp_path / "in", 1, user=["bob", "ada", "ada"], amount=[1, 2, -3])
    with pytest.raises(fp.UserError) as told:
        query.await_termination()
    wanted = "ValueError in operator count, epoch 2, key Key(user='ada'), row Row(user='ada', amount=-3): negative amount"
    assert str(told.value) == wanted and "in process" in told.value.__notes__[0]
    assert all_gone(pids) and not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert [progress.tries for progress in query.progress] == [1]
    again = start(spark, tmp_path, Picky(), trigger=ONCE)
    with pytest.raises(fp.UserError, match="epoch 2, key Key"):
        again.await_termination()


def test_a_timer_that_fails_ends_the_query_too(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[1])
    query = start(spark, tmp_path, Grumpy(), workers=1)
    pids = pids_of(query, 1)
    with pytest.raises(fp.UserError, match=r"LookupError in operator count, .*key Key\(user='ada'\).*nothing for ada"):
        query.await_termination()
    assert all_gone(pids)


def test_a_stop_in_the_middle_of_an_epoch_finishes_it(spark, tmp_path):
    rows = write_inputs(tmp_path, 1)
    query = start(spark, tmp_path, Held(tmp_path))
    wait_for("the epoch to begin", (tmp_path / "begun").exists)
    pids = pids_of(query)
    stopping = Thread(target=query.stop, daemon=True)
    stopping.start()
    wait_for("the stop to begin", lambda: query._driver._drain_lock._shut)
    assert query.manifest.epoch == 0 and all(map(serves, pids))
    (tmp_path / "go").touch()
    stopping.join()
    assert query.manifest.epoch == 1 and state_of(tmp_path) == expected(rows) and all_gone(pids)


def test_slots_change_while_it_runs_and_move_at_no_other_time(spark, tmp_path):
    write_inputs(tmp_path, 2)
    (tmp_path / "go").touch()
    query = start(spark, tmp_path, Whereabouts(), slots=2)
    pids = pids_of(query)
    query.process_all_available()
    query.rescale(5)
    write_inputs(tmp_path, 3, first=2)
    query.process_all_available()
    query.stop()
    assert [progress.slots for progress in query.progress] == [2, 2, 5, 5, 5]
    assert [progress.moved_slots for progress in query.progress[2:]] == [0, 0, 0]
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert {row["process"] for row in found} <= pids
    by_user = {row["user"]: row["process"] for row in found[-30:]}
    assert len(set(by_user.values())) == 2, "slots are spread over the workers"


def test_a_second_query_has_what_cores_are_left_and_a_third_is_refused_with_numbers(spark, tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
        write_inputs(tmp_path / name, 2)
    first, second = start(spark, tmp_path / "a"), start(spark, tmp_path / "b", workers=1)
    with pytest.raises(
        fp.BadInput, match=r"with 2 workers needs 2 free task slots; .* has 4, 3 of them held by .* other queries"
    ):
        start(spark, tmp_path / "c", workers=2)
    for query in (first, second):
        query.process_all_available()
    assert state_of(tmp_path / "a") == state_of(tmp_path / "b")
    first.stop()
    third = start(spark, tmp_path / "c", workers=2)
    third.process_all_available()
    assert state_of(tmp_path / "c") == state_of(tmp_path / "b")
    with pytest.raises(fp.BadInput, match=r"with 9 workers needs 9 free task slots.*such as local\[12\]"):
        start(spark, tmp_path / "a", workers=9)


def test_a_function_for_each_batch_has_a_core_for_its_jobs(spark, tmp_path):
    rows, seen = write_inputs(tmp_path, 2), []
    counted = fp.stream(source(spark, tmp_path)).key_by("user").process(Count())
    output = counted.foreach_batch(lambda df, epoch: seen.append((epoch, df.repartition(3).groupBy("n").count().collect())))
    output = output.also(counted.write("parquet", path=str(tmp_path / "out"), name="files"))
    query = output.start(state=tmp_path / "state", slots=3, settings=FAST, engine=fp.Workers(count=3), trigger=ONCE)
    query.await_termination()
    assert [epoch for epoch, _ in seen] == [1, 2] and all(counts for _, counts in seen)
    assert state_of(tmp_path) == expected(rows)


def test_static_input_goes_through_workers_once(spark, tmp_path):
    users(tmp_path / "in", 0, "ada", "ada", "bob")
    rows = spark.read.parquet(str(tmp_path / "in"))
    counted = fp.stream(rows).key_by("user").process(Count()).key_by("n").process(ByCount()).write("memory")
    for batch in ("monday", "monday"):
        query = counted.start(state=tmp_path / "state", slots=2, settings=FAST, engine="workers", batch=batch)
        assert not query.is_active and not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert query.progress == []
    query = counted.start(state=tmp_path / "state", slots=2, settings=FAST, engine="workers", batch="tuesday")
    assert sorted(rows_of(query.sink))[-1] == (4, ["ada"]), "on top of what the first batch left"


REFUSED = [
    ({"spark.python.worker.killOnIdleTimeout": "true"}, "killOnIdleTimeout=true: Spark would kill workers that wait for rows"),
    ({"spark.speculation": "true", "spark.speculation.task.duration.threshold": "5s"}, "threshold=5s: .* second copy"),
    ({"spark.executor.pyspark.memory": "2g"}, "memory=2g: it limits the address space .* has 3.5 MiB"),
]


@pytest.mark.parametrize(("conf", "why"), REFUSED)
def test_settings_of_spark_that_workers_would_not_survive_are_refused_by_name(spark, conf, why, request):
    given = spark.sparkContext._conf
    for name, value in conf.items():
        request.addfinalizer(lambda name=name: given._jconf.remove(name))
        given.set(name, value)
    with pytest.raises(fp.BadInput, match=why):
        check_settings(spark.sparkContext, 7 << 19)


def test_of_queries_that_start_at_once_none_takes_what_another_has(spark):
    def take(number: int) -> bool:
        try:
            reserved(spark.sparkContext, fp.Workers(count=1), 1, 0, b"%d" % number)
        except fp.BadInput:
            return False
        return True

    try:
        with ThreadPoolExecutor(12) as starting:
            taken = list(starting.map(take, range(12)))
        assert taken.count(True) == 4 and free_task_slots(spark.sparkContext) == 0
    finally:
        for number in range(12):
            release(b"%d" % number)
    assert free_task_slots(spark.sparkContext) == 4


def test_a_start_that_fails_leaves_all_task_slots(spark, tmp_path):
    write_inputs(tmp_path, 1)
    with create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        start(spark, tmp_path, engine=fp.Workers(count=2, port=taken.getsockname()[1]))
    assert free_task_slots(spark.sparkContext) == 4


def test_unknown_engines_and_impossible_settings_are_refused(spark, tmp_path):
    write_inputs(tmp_path, 1)
    with pytest.raises(fp.BadInput, match='engine=\'threads\' is not known: use "tasks", "workers" or Workers'):
        start(spark, tmp_path, engine="threads")
    with pytest.raises(fp.BadInput, match=r"Workers\(count=0\) is not possible"):
        fp.Workers(count=0)
    with pytest.raises(fp.BadInput, match=r"heartbeat_timeout_ms=500\) is not possible: .* use 1000 or more"):
        fp.Workers(heartbeat_timeout_ms=500)
    with pytest.raises(fp.BadInput, match=r"heartbeat_timeout_ms='3 s'\) is not possible"):
        fp.Workers(heartbeat_timeout_ms="3 s")
    with pytest.raises(fp.BadInput, match="certificate, key and authority go together"):
        fp.Workers(certificate="a.pem")
    with pytest.raises(fp.BadInput, match=r"these certificates cannot be used: .*No such file"):
        start(spark, tmp_path, engine=fp.Workers(certificate="a.pem", key="b.pem", authority="c.pem"))
    assert not spark.streams.active


def test_an_error_in_a_step_of_spark_ends_the_query_with_sparks_own_error(spark, tmp_path):
    put_file(tmp_path / "in", 0, user=["ada"], amount=[0])
    divided = fp.stream(source(spark, tmp_path)).transform(lambda df: df.selectExpr("user", "1 div amount as amount"))
    query = (
        divided.key_by("user")
        .process(Count())
        .write("memory")
        .start(state=tmp_path / "state", slots=2, settings=FAST, engine=fp.Workers(count=2))
    )
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        query.await_termination()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()


def test_the_error_of_one_worker_does_not_wait_for_the_function_of_another(spark, tmp_path):
    """Nor does the end of the query: what another worker is in the middle of is ended."""
    names = [f"u{n}" for n in range(40)]
    upper = hash_columns([pa.array(names)]).view("uint64") >> 63  # which of two slots
    other = names[int((upper != upper[0]).argmax())]
    (tmp_path / "in").mkdir()
    query = start(spark, tmp_path, Stuck(tmp_path), slots=2)
    pids = pids_of(query)
    put_file(tmp_path / "in", 0, user=["u0", other], amount=[-1, 1])
    with pytest.raises(fp.UserError, match=r"key Key\(user='u0'\).*negative amount"):
        query.await_termination()
    assert not (tmp_path / "go").exists() and all_gone(pids)


def test_a_worker_that_waits_for_a_core_is_a_warning_and_the_others_run_its_slots(spark, tmp_path, monkeypatch, caplog):
    """Of which Spark says nothing."""
    inner = SparkLauncher.launch
    monkeypatch.setattr(SparkLauncher, "launch", lambda self, worker, job: None if worker else inner(self, worker, job))
    monkeypatch.setattr("floodplain.workers.members.WAITING_S", 0.0)
    rows = write_inputs(tmp_path, 1)
    query = start(spark, tmp_path, trigger=ONCE)
    query.await_termination()
    wanted = r"1 of 2 workers have waited up to \d+ s for a core of Spark: the others run their slots meanwhile"
    assert [re.match(wanted, warning) is not None for warning in query.progress[0].warnings] == [True]
    assert re.search("of 2 workers have waited", caplog.text) and state_of(tmp_path) == expected(rows)


@pytest.mark.parametrize("way", ["native", "bridge"])
def test_with_certificates_nothing_is_said_in_clear_text(spark, tmp_path, way, caplog):
    rows, folder = write_inputs(tmp_path, 2), tmp_path / "certificates"
    folder.mkdir()
    made = certificates(folder)
    engine = fp.Workers(count=2, certificate=made.certificate, key=made.key, authority=made.authority)
    stream = fp.stream(source(spark, tmp_path))
    if way == "bridge":
        stream = stream.transform(lambda df: df.where("amount >= rand() - 1"))
    counted = stream.key_by("user").process(Count()).key_by("n").process(ByCount()).write("memory")
    query = counted.start(state=tmp_path / "state", slots=4, settings=FAST, engine=engine)
    query.process_all_available()
    with create_connection(("127.0.0.1", query._driver._engine._pool.coordinator.port), 10) as stranger:
        stranger.sendall(b"as without certificates")
        wait_for("the refusal", lambda: "WRONG_VERSION_NUMBER" in caplog.text)
    query.stop()
    assert f"input, {way}" in query.explain() and state_of(tmp_path) == expected(rows)
