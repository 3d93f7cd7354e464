"""Whether this Spark can hold workers that stay, how many, and where they find the driver. Refused or warned of with numbers."""

import re
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from floodplain.errors import BadInput
from floodplain.settings import Workers
from floodplain.workers.channel import Certificates

_FATAL = {
    "spark.python.worker.killOnIdleTimeout": "Spark would kill workers that wait for rows",
}


@dataclass(frozen=True)
class WorkerPlan:
    """How many workers a query has, and where its coordinator listens."""

    workers: int
    bind: tuple[str, int]
    host: str
    """The driver's, as workers reach it."""
    certificates: Certificates | None = None


NO_LIMIT = 1 << 30
"""Task slots under dynamic allocation without a largest number of executors."""
_held: dict[bytes, int] = {}
"""The secret of a running query → the task slots that its workers hold."""


def check_settings(context: SparkContext) -> None:
    """Raises ``BadInput`` where workers could not stay."""
    conf = context.getConf()
    for name, why in _FATAL.items():
        if (conf.get(name, "false") or "").lower() == "true":
            raise BadInput(f'engine="workers" does not run with {name}=true: {why}. Unset it, or use engine="tasks"')
    threshold = conf.get("spark.speculation.task.duration.threshold", None)
    if (conf.get("spark.speculation", "false") or "").lower() == "true" and threshold:
        raise BadInput(
            f'engine="workers" does not run with spark.speculation.task.duration.threshold={threshold}: Spark would start a '
            'second copy of each worker, which never ends. Unset it, or use engine="tasks"'
        )
    memory = conf.get("spark.executor.pyspark.memory", None)
    if memory:
        raise BadInput(
            f'engine="workers" does not run with spark.executor.pyspark.memory={memory}: it limits the address space of workers, '
            'which map the state. Unset it, or use engine="tasks"'
        )


def planned(context: SparkContext, options: Workers, slots: int, spare: int) -> WorkerPlan:
    """``spare``: task slots left to jobs of Spark. Raises ``BadInput`` if there are too few."""
    conf = context.getConf()
    host = conf.get("spark.driver.host", "") or "localhost"
    return WorkerPlan(
        _count(context, options.count, slots, spare),
        (conf.get("spark.driver.bindAddress", "") or host, options.port),
        host,
        _certificates(options),
    )


def _certificates(options: Workers) -> Certificates | None:
    if options.certificate is None or options.key is None or options.authority is None:
        return None
    made = Certificates(options.certificate, options.key, options.authority)
    try:
        made.check()
    except OSError as error:
        raise BadInput(f"Workers: these certificates cannot be used: {error}") from error
    return made


def _count(context: SparkContext, wanted: int | None, slots: int, spare: int) -> int:
    there, held = task_slots(context), sum(_held.values())
    free = there - held - spare
    if wanted is None:
        wanted = min(slots, max(there - held - 1, 1))  # so that no job of the user waits for ever without a word
    if wanted > free:
        taken = f", {held} of them held by workers of other queries" if held else ""
        others = ", one of them for the jobs that bring rows" if spare else ""
        raise BadInput(
            f'engine="workers" with {wanted} worker{"s" if wanted > 1 else ""} needs {wanted + spare} free task slots{others}; '
            f"this Spark has {there}{taken}: use a larger master such as local[{held + wanted + spare}], more executors, fewer "
            'workers in Workers(count=…), or engine="tasks"'
        )
    return wanted


def free_task_slots(context: SparkContext) -> int:
    """Those that no worker holds."""
    return task_slots(context) - sum(_held.values())


def task_slots(context: SparkContext) -> int:
    """How many tasks can run at once: with dynamic allocation, once all executors have come."""
    local = re.match(r"local\[(\d+)", str(context.master))
    if local is not None:
        return int(local[1])
    conf = context.getConf()
    bridge: Any = context._jsc.sc()
    if (conf.get("spark.dynamicAllocation.enabled", "false") or "").lower() == "true":
        per_executor = int(conf.get("spark.executor.cores", "1") or 1) // int(conf.get("spark.task.cpus", "1") or 1)
        most = conf.get("spark.dynamicAllocation.maxExecutors", None)
        return NO_LIMIT if most is None else int(most) * per_executor
    return int(bridge.maxNumConcurrentTasks(bridge.resourceProfileManager().defaultResourceProfile()))


def hold(query: bytes, workers: int) -> None:
    """The workers of this query hold so many task slots from now on."""
    _held[query] = workers


def release(query: bytes) -> None:
    _held.pop(query, None)
