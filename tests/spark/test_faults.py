"""Tasks and executors that fail, die, are tried twice or come late: state and output are always of the same attempts."""

from pathlib import Path

import pytest

from floodplain.spark.java import java_home
from tests.spark.cluster import Cluster
from tests.spark.fault_pipeline import check, write_input
from tests.spark.fault_processes import Fault

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    java = java_home(tmp_path_factory.mktemp("java"))
    if java is None:
        pytest.skip("no Java 17 or newer: set JAVA_HOME, put java on the PATH or install the extra `java`")
    with Cluster(tmp_path_factory.mktemp("cluster"), java) as cluster:
        yield cluster


def fault(folder: Path, operator: str, epoch: int, act: str, **more) -> Fault:
    return Fault(str(folder / f"{operator}-{epoch}"), operator, epoch, act, **more)


def test_a_task_that_fails_or_dies_once_leaves_no_trace(cluster, tmp_path):
    write_input(tmp_path, 3)
    faults = [
        fault(tmp_path, "first", 1, "raise"),
        fault(tmp_path, "second", 1, "exit"),
        fault(tmp_path, "first", 2, "kill"),
        fault(tmp_path, "second", 2, "raise", point="staged"),
        fault(tmp_path, "first", 3, "kill", point="staged"),
    ]
    cluster.start(tmp_path, *faults)
    cluster.finish(tmp_path)
    for one in faults:
        slots = [arrival["slot"] for arrival in one.arrivals()]
        assert slots.count(slots[0]) == 2, f"{one.act} of {one.operator} in epoch {one.epoch}: tried twice"
    check(tmp_path, 3)
