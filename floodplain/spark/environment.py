"""Checks before the first epoch that Spark, its Java and the Python of its tasks are compatible with this driver."""

import os
import re
import sys
from collections.abc import Iterable, Mapping

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession

from floodplain.errors import BadInput
from floodplain.spark import environment_probe
from floodplain.spark.environment_probe import MODULES, probe
from floodplain.spark.java import OLDEST_JAVA
from floodplain.spark.session_conf import SPARKS

SUPPORTED = {"pyspark": ((4, 3), (5,)), "pyarrow": ((21,), None)}
"""From, and up to but not including, if there is an end."""
MAX_PROBED_TASKS = 32
"""Tasks that are probed on a cluster, where each machine may have another Python."""

_CONNECT = "pyspark.sql.connect."
_DEFAULT = "python3"
"""What Spark starts if no Python is configured: the first of that name on the PATH."""
_NO_PYTHON = re.compile(r'Cannot run program "[^"\n]*"[^\n]*|\[PYTHON_VERSION_MISMATCH\][^\n]*|[^\n]*PythonException: [^\n]*')
_probed: set[tuple[str, str]] = set()
"""Pairs of application and Python that this process has probed, and that fit."""

cloudpickle.register_pickle_by_value(environment_probe)  # type: ignore[no-untyped-call]


def prepare_workers(session: SparkSession) -> None:
    """Raise ``BadInput`` that says what to do where Spark, its Java or the Python of its tasks do not fit this driver.

    On this machine alone (``local[…]``), tasks get the driver's Python unless another was chosen. It costs one small job for each
    application and Python.
    """
    context = session.sparkContext
    mine = next(probe(()))
    check_driver(mine, context.version, _java(context))
    _use_drivers_python(context)
    environment = (str(context.applicationId), context.pythonExec)
    if environment not in _probed:
        check_workers(mine, _probe_tasks(context), local=_is_local(context))
        _probed.add(environment)


def check_classic(frames: Iterable[object]) -> None:
    """Raises ``BadInput`` for DataFrames of Spark Connect."""
    for frame in frames:
        if type(frame).__module__.startswith(_CONNECT):
            raise BadInput(
                "this DataFrame is of Spark Connect, whose sessions have no SparkContext: foreachBatch would run elsewhere, and "
                "no task could be started. Run the pipeline in the driver, with a session of SparkSession.builder.master(…), or "
                "by spark-submit"
            )


def check_driver(mine: Mapping[str, str], spark: str, java: str) -> None:
    """``mine``: what ``probe`` reports in the driver. ``spark``, ``java``: the versions of the JVM side."""
    for name, (oldest, end) in SUPPORTED.items():
        version = _numbers(mine[name])
        if version < oldest or (end is not None and version >= end):
            wanted = f"{name}>={_text(oldest)}" + ("" if end is None else f",<{_text(end)}")
            raise BadInput(f"{name} {mine[name]} in {mine['python']} does not fit Floodplain: install '{wanted}' there")
    if _numbers(spark)[:2] != _numbers(mine["pyspark"])[:2]:
        raise BadInput(
            f"Spark is {spark} and pyspark in {mine['python']} is {mine['pyspark']}: install there pyspark "
            f"{_text(_numbers(spark)[:2])}, or unset SPARK_HOME if it leads to another Spark"
        )
    if _numbers(java) < (OLDEST_JAVA,):
        raise BadInput(f"Spark runs on Java {java} and needs {OLDEST_JAVA} or newer: set JAVA_HOME before the session is made")


def check_workers(mine: Mapping[str, str], theirs: Iterable[Mapping[str, str]], *, local: bool) -> None:
    """``theirs``: what ``probe`` reports in tasks."""
    for report in theirs:
        where = f"the Python of Spark's tasks, {report['python']}" + ("" if local else f" on {report['host']}")
        for name in MODULES:
            if f"no {name}" in report:
                raise BadInput(f"{where}, cannot import {name} ({report[f'no {name}']}): {_advice(local)}")
        other = [name for name in MODULES if report[name] and mine[name] and report[name] != mine[name]]
        if other:
            versions = ", ".join(f"{name} {report[name]} instead of {mine[name]}" for name in other)
            raise BadInput(f"{where}, has {versions}, as the driver's Python {mine['python']} has: {_advice(local)}")


def _advice(local: bool) -> str:
    if local:
        return f"set PYSPARK_PYTHON to {sys.executable} before the session is made, or install there what this Python has"
    return (
        "install there what the driver's Python has; or set PYSPARK_PYTHON (with spark-submit also spark.pyspark.python) to a "
        "Python of all machines that has it; or pack an environment and ship it: --archives env.tar.gz#env and "
        "PYSPARK_PYTHON=./env/bin/python"
    )


def _is_local(context: SparkContext) -> bool:
    return re.match(r"local(\[|$)", str(context.master)) is not None


def _use_drivers_python(context: SparkContext) -> None:
    """Spark reads ``pythonExec`` each time it sends a function, but the environment variable only when the session is made."""
    if _is_local(context) and context.pythonExec in ("", _DEFAULT) and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = context.getConf().get("spark.pyspark.python") or sys.executable or _DEFAULT


def _probe_tasks(context: SparkContext) -> list[dict[str, str]]:
    local = _is_local(context)
    tasks = 1 if local else max(min(context.defaultParallelism, MAX_PROBED_TASKS), 1)
    try:
        return context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
    except SPARKS as error:
        reason = _NO_PYTHON.search(str(error))
        if reason is None:
            raise
        raise BadInput(f"Spark's tasks cannot run in {context.pythonExec} ({reason[0].strip()}): {_advice(local)}") from error


def _java(context: SparkContext) -> str:
    jvm = context._jvm
    return "" if jvm is None else str(jvm.java.lang.System.getProperty("java.specification.version"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
