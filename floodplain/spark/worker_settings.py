"""Whether this Spark can hold workers that stay, how many, and where they find the driver. Refused or warned of with numbers."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark import SparkContext

from floodplain.errors import BadInput
from floodplain.settings import Workers
from floodplain.workers.channel import Certificates

Setting: TypeAlias = Callable[[str], str]
"""The value of a setting of Spark, "" where it is not set."""


@dataclass(frozen=True)
class WorkerPlan:
    """How many workers a query has, and where its coordinator listens."""

    workers: int
    bind: tuple[str, int]
    host: str
    """The driver's, as workers reach it."""
    certificates: Certificates | None = None


@dataclass(frozen=True)
class TaskSlots:
    """How many tasks can run at once: with dynamic allocation, once all executors have come."""

    count: int
    per_executor: int = 0
    """If ``spark.dynamicAllocation.maxExecutors`` limits them: the task slots of each executor."""

    def __str__(self) -> str:
        if not self.per_executor:
            return f"this Spark has {self.count}"
        executors = self.count // self.per_executor
        several = "" if self.per_executor == 1 else "s"
        return (
            f"this Spark may have {self.count} (spark.dynamicAllocation.maxExecutors={executors}, {self.per_executor} task "
            f"slot{several} each)"
        )

    def more(self, needed: int) -> str:
        """What gives so many."""
        if not self.per_executor:
            return f"a larger master such as local[{needed}], more executors"
        return f"spark.dynamicAllocation.maxExecutors={-(-needed // self.per_executor)}"


NO_LIMIT = 1 << 30
"""Task slots under dynamic allocation without a largest number of executors."""
_held: dict[bytes, int] = {}
"""The secret of a running query → the task slots that its workers hold."""
_counting = threading.Lock()
"""Of two queries that start at once, the second counts what the first has taken."""


def setting_of(context: SparkContext) -> Setting:
    conf = context.getConf()
    return lambda name: conf.get(name, "") or ""


def check_settings(context: SparkContext, state_bytes: int) -> None:
    """Raises ``BadInput`` where workers could not stay. ``state_bytes``: what they will map of the state."""
    setting = setting_of(context)
    if _is_on(setting("spark.python.worker.killOnIdleTimeout")):
        raise _refused("spark.python.worker.killOnIdleTimeout=true", "Spark would kill workers that wait for rows")
    threshold = setting("spark.speculation.task.duration.threshold")
    if _is_on(setting("spark.speculation")) and threshold:
        raise _refused(
            f"spark.speculation.task.duration.threshold={threshold}",
            "Spark would start a second copy of each worker, which never ends",
        )
    memory = setting("spark.executor.pyspark.memory")
    if memory:
        raise _refused(
            f"spark.executor.pyspark.memory={memory}",
            "it limits the address space of all tasks of an executor together, and each worker maps the state, which has "
            f"{state_bytes / (1 << 20):.1f} MiB by now and may grow",
        )


def _is_on(value: str) -> bool:
    return value.lower() == "true"


def _refused(setting: str, why: str) -> BadInput:
    return BadInput(f'engine="workers" does not run with {setting}: {why}. Unset it, or use engine="tasks"')


def reserved(context: SparkContext, options: Workers, slots: int, spare: int, query: bytes) -> WorkerPlan:
    """The workers of this query hold their task slots from now on, until ``release``. Raises ``BadInput`` if there are too few.

    ``spare``: task slots left to jobs of Spark. ``query``: its secret.
    """
    setting = setting_of(context)
    bind, host = addresses(setting)
    certificates = _certificates(options)
    with _counting:
        workers = _count(task_slots(context), sum(_held.values()), options.count, slots, spare)
        _held[query] = workers
    return WorkerPlan(workers, (bind, options.port), host, certificates)


def release(query: bytes) -> None:
    """May be called again, and of a query that holds nothing."""
    with _counting:
        _held.pop(query, None)


def addresses(setting: Setting) -> tuple[str, str]:
    """Where the driver listens, and where workers reach it: as Spark's own."""
    host = setting("spark.driver.host") or "localhost"
    return setting("spark.driver.bindAddress") or host, host


def _certificates(options: Workers) -> Certificates | None:
    if options.certificate is None or options.key is None or options.authority is None:
        return None
    made = Certificates(options.certificate, options.key, options.authority)
    try:
        made.check()
    except OSError as error:
        raise BadInput(f"Workers: these certificates cannot be used: {error}") from error
    return made


def _count(there: TaskSlots, held: int, wanted: int | None, slots: int, spare: int) -> int:
    if wanted is None:
        wanted = min(slots, max(there.count - held - 1, 1))  # so that no job of the user waits for ever without a word
    if wanted > there.count - held - spare:
        taken = f", {held} of them held by workers of other queries" if held else ""
        others = ", one of them for the jobs that bring rows" if spare else ""
        raise BadInput(
            f'engine="workers" with {wanted} worker{"s" if wanted > 1 else ""} needs {wanted + spare} free task slots{others}; '
            f"{there}{taken}: use {there.more(held + wanted + spare)}, fewer workers in Workers(count=…), or "
            'engine="tasks"'
        )
    return wanted


def free_task_slots(context: SparkContext) -> int:
    """Those that no worker holds."""
    with _counting:
        return task_slots(context).count - sum(_held.values())


def task_slots(context: SparkContext) -> TaskSlots:
    setting = setting_of(context)
    if _is_on(setting("spark.dynamicAllocation.enabled")) and not str(context.master).startswith("local"):
        return allocated(setting, str(context.master))
    bridge: Any = context._jsc.sc()
    return TaskSlots(int(bridge.maxNumConcurrentTasks(bridge.resourceProfileManager().defaultResourceProfile())))


def allocated(setting: Setting, master: str) -> TaskSlots:
    """By the settings of dynamic allocation, as executors come when tasks wait."""
    cores = setting("spark.executor.cores") or ("" if master.startswith("spark://") else "1")
    most = setting("spark.dynamicAllocation.maxExecutors")
    if not most or not cores:  # on a standalone cluster an executor has all cores of its host, unless it is told how many
        return TaskSlots(NO_LIMIT)
    per_executor = max(int(cores) // int(setting("spark.task.cpus") or 1), 1)
    return TaskSlots(int(most) * per_executor, per_executor)
