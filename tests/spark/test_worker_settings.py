"""How many workers a Spark can hold, and where they find the driver, by its settings. No Spark runs."""

import re

import pytest

from floodplain.errors import BadInput
from floodplain.spark.worker_settings import NO_LIMIT, TaskSlots, _count, addresses, allocated

PREFIX = "spark."


def settings_of(given):
    return lambda name: given.get(name.removeprefix(PREFIX), "")


ALLOCATED = [
    ({}, "yarn", TaskSlots(NO_LIMIT)),
    ({"dynamicAllocation.maxExecutors": "3"}, "yarn", TaskSlots(3, 1)),
    ({"dynamicAllocation.maxExecutors": "3", "executor.cores": "4"}, "yarn", TaskSlots(12, 4)),
    ({"dynamicAllocation.maxExecutors": "3", "executor.cores": "5", "task.cpus": "2"}, "k8s://host", TaskSlots(6, 2)),
    ({"dynamicAllocation.maxExecutors": "3"}, "spark://host:7077", TaskSlots(NO_LIMIT)),
    ({"dynamicAllocation.maxExecutors": "3", "executor.cores": "2"}, "spark://host:7077", TaskSlots(6, 2)),
]


@pytest.mark.parametrize(("given", "master", "slots"), ALLOCATED)
def test_under_dynamic_allocation_the_most_executors_count(given, master, slots):
    assert allocated(settings_of(given), master) == slots


def test_a_limit_of_executors_is_named_with_what_would_do():
    """Three workers, one slot for other jobs, and five slots that other queries hold: nine, on executors of two."""
    wanted = (
        "with 3 workers needs 4 free task slots, one of them for the jobs that bring rows; this Spark may have 6 "
        "(spark.dynamicAllocation.maxExecutors=3, 2 task slots each), 5 of them held by workers of other queries: "
        "use spark.dynamicAllocation.maxExecutors=5, fewer workers in Workers(count=…), or"
    )
    with pytest.raises(BadInput, match=re.escape(wanted)):
        _count(TaskSlots(6, 2), 5, 3, slots=4, spare=1)


COUNTS = [
    # there, held, wanted, slots, spare → workers
    ((4, 0, None, 8, 1), 3),
    ((4, 0, None, 2, 1), 2),
    ((4, 0, None, 8, 0), 3),
    ((4, 0, 4, 8, 0), 4),
    ((4, 2, None, 8, 1), 1),
    ((NO_LIMIT, 0, None, 5, 1), 5),
]


@pytest.mark.parametrize(("given", "workers"), COUNTS)
def test_by_default_there_are_as_many_workers_as_slots_and_one_core_stays_free(given, workers):
    there, held, wanted, slots, spare = given
    assert _count(TaskSlots(there), held, wanted, slots, spare) == workers


@pytest.mark.parametrize("given", [(1, 0, None, 1, 1), (4, 4, None, 1, 0), (4, 0, 4, 4, 1)])
def test_too_few_cores_are_refused(given):
    there, *others = given
    with pytest.raises(BadInput, match=r"this Spark has \d.*such as local\[\d+\], more executors"):
        _count(TaskSlots(there), *others)


ADDRESSES = [
    ({}, ("localhost", "localhost")),
    ({"driver.host": "driver.example"}, ("driver.example", "driver.example")),
    ({"driver.host": "driver.example", "driver.bindAddress": "0.0.0.0"}, ("0.0.0.0", "driver.example")),
]


@pytest.mark.parametrize(("given", "wanted"), ADDRESSES)
def test_the_driver_listens_where_spark_does(given, wanted):
    assert addresses(settings_of(given)) == wanted
