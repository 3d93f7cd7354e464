"""Drivers killed by SIGKILL at chosen points of an epoch, and drivers that another one took over from."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from floodplain.errors import StoreNotFound
from floodplain.spark.java import java_home
from floodplain.store.store import Store
from floodplain.versions.records.manifest import Manifest
from tests.engines import ENGINES
from tests.spark.cluster import environment
from tests.spark.driver_process import POINTS
from tests.spark.fault_pipeline import check, start, write_input
from tests.spark.fault_processes import Fault
from tests.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    found = java_home(tmp_path_factory.mktemp("java"))
    if found is None:
        pytest.skip("no Java 17 or newer: set JAVA_HOME, put java on the PATH or install the extra `java`")
    return found


class Drivers:
    """Driver processes on one folder, one after the other."""

    def __init__(self, folder: Path, java: Path, operators: int = 2, engine: str = "tasks") -> None:
        self.folder, self._environment, self._operators, self._engine = folder, environment(java), operators, engine
        self._lives = 0

    def start(
        self, point: str = "", act: str = "kill", epochs: int = 0, slots: int = 2, **options: Any
    ) -> subprocess.Popen[bytes]:
        """A driver that reaches ``point`` after so many whole epochs."""
        self._lives += 1
        fault = None
        if point == "during_task":
            fault = Fault(str(self.folder / f"task-{self._lives}"), "first", self.head().epoch + epochs + 1, "hold", slot=0)
        plan = {"point": point, "act": act, "epochs": epochs, "slots": slots, "operators": self._operators}
        plan |= {"fault": vars(fault) if fault else None, "engine": self._engine, **options}
        with self._log().open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver_process", str(self.folder), json.dumps(plan)],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def live(self, point: str, epochs: int, slots: int) -> Manifest:
        """Start one and wait until it has killed itself; returns what is in the state then."""
        process = self.start(point, epochs=epochs, slots=slots)
        self.end(process, -signal.SIGKILL)
        if point == "during_task":
            Fault(str(self.folder / f"task-{self._lives}"), "", 0, "").release()
        return self.head()

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        """Wait for the end of a process; returns what it said."""
        try:
            found = process.wait(180)
        finally:
            process.kill()
        said = self._log().read_text(errors="replace")
        assert found == code, said[-4000:]
        return said

    def _log(self) -> Path:
        return self.folder / f"log-{self._lives}"

    def head(self) -> Manifest:
        try:
            return Store.open(self.folder / "state").head
        except StoreNotFound:
            return Manifest("", 0)


def check_place(drivers: Drivers, point: str, before: Manifest, head: Manifest, epochs: int) -> None:
    """The kill fell where it should."""
    committed = point in POINTS[POINTS.index("after_commit") :]
    assert head.epoch == before.epoch + epochs + committed
    newest = f"epoch-{head.epoch:012d}-*.parquet"
    files = tuple(len(list((drivers.folder / name).glob(newest))) for name in ("first", "second"))
    if committed and point != "after_publish":
        assert head.published == head.epoch - 1
        assert files == {"after_commit": (0, 0), "during_publish": (1, 0)}.get(point, files)
    if committed:
        assert not (drivers.folder / "state" / "checkpoint" / "commits" / str(head.source.batch_id)).exists()


THREE = [("during_task", 1, 2), ("after_commit", 0, 3), ("during_publish", 1, 2)]
SIX = [
    *(("before_first_job", 0, 2), ("during_task", 1, 2), ("after_tasks", 0, 3)),
    *(("after_commit", 0, 3), ("during_publish", 1, 2), ("after_publish", 0, 2)),
]


@pytest.mark.parametrize(
    ("engine", "lives"), [("tasks", THREE), *(pytest.param(engine, SIX, marks=pytest.mark.soak) for engine in ENGINES)]
)
def test_a_driver_killed_at_points_of_an_epoch_loses_and_repeats_nothing(java, tmp_path, engine, lives):
    """Each of the drivers goes on where the one before was killed, some of them with other slots."""
    write_input(tmp_path, 6)
    drivers = Drivers(tmp_path, java, engine=engine)
    before = Manifest("", 0)
    for point, epochs, slots in lives:
        head = drivers.live(point, epochs, slots)
        check_place(drivers, point, before, head, epochs)
        before = head
    assert before.epoch in (4, 5), "something is left to do"
    drivers.end(drivers.start(slots=3))
    check(tmp_path, 6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("operators", [1, 2])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_driver_killed_again_and_again_at_any_point(java, tmp_path, point, operators, engine):
    if operators == 1 and point == "before_second_job":
        pytest.skip("there is no second job")
    write_input(tmp_path, 8)
    drivers = Drivers(tmp_path, java, operators, engine)
    before = Manifest("", 0)
    for epochs, slots in [(0, 2), (0, 2), (1, 3), (0, 2), (2, 4)]:
        head = drivers.live(point, epochs, slots)
        assert head.epoch - before.epoch in (epochs, epochs + 1)
        before = head
    drivers.end(drivers.start(slots=1))
    check(tmp_path, 8, operators)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for name in ("first", "second") for path in (folder / name).glob("*.parquet")}


@pytest.mark.soak
@pytest.mark.parametrize("point", ["before_first_job", "after_tasks", "after_commit"])
def test_a_driver_that_was_taken_over_from_in_an_epoch_stops_and_publishes_nothing(spark, java, tmp_path, point):
    write_input(tmp_path, 2)
    drivers = Drivers(tmp_path, java)
    first = drivers.start(point, act="hold", forever=True)
    try:
        wait_for("the first driver to be held", lambda: (tmp_path / "held").exists() or first.poll() is not None)
        second = start(spark, tmp_path, [], force=True)
        second.await_termination()
        second.stop()
        check(tmp_path, 2)
        before = files(tmp_path)
        (tmp_path / "go").touch()
        said = drivers.end(first)
    finally:
        first.kill()
    assert "exception: " in said and "superseded" in said.partition("exception: ")[2], said[-4000:]
    assert files(tmp_path) == before
    check(tmp_path, 2)
    write_input(tmp_path, 1)
    third = start(spark, tmp_path, [])
    third.await_termination()
    third.stop()
    check(tmp_path, 3)


@pytest.mark.soak
def test_a_driver_that_was_taken_over_from_while_it_waits_for_input_stops(spark, java, tmp_path):
    write_input(tmp_path, 1)
    drivers = Drivers(tmp_path, java)
    first = drivers.start(forever=True)
    try:
        wait_for("the first epoch", lambda: drivers.head().published == 1 or first.poll() is not None)
        second = start(spark, tmp_path, [], force=True, forever=True)
        said = drivers.end(first)
    finally:
        first.kill()
    assert "superseded" in said.partition("exception: ")[2], said[-4000:]
    write_input(tmp_path, 1)
    second.process_all_available()
    second.stop()
    check(tmp_path, 2)
