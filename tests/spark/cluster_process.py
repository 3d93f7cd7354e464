"""A Spark cluster in a process of its own, told what to do by lines: ``python -m tests.spark.cluster_process SCRATCH SETTINGS``.

As ``local-cluster[2,1,…]``: a master and two workers with a core each in this JVM, an executor JVM for each worker. But here the
workers are two hosts, since Spark does not put a second attempt of a task on the host of the first.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from floodplain.spark.runtime import Query
from tests.spark.fault_pipeline import start
from tests.spark.fault_processes import Fault

HOSTS = ("127.0.0.1", "127.0.0.2")
EXECUTOR_MB = 512
NEVER = "1e9"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": f"{EXECUTOR_MB}m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0s",
    # A second attempt as soon as another task has ended. Which tests want it is told by the multiplier.
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": NEVER,
    "spark.speculation.efficiency.enabled": "false",
    # A worker whose task was killed is left alone: it writes late.
    "spark.python.task.killTimeout": "600s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.ui.liveUpdate.period": "0",
}


def cluster(scratch: Path, more: dict[str, str]) -> SparkSession:
    conf = SparkConf().setAll(list({**SETTINGS, **more}.items())).set("spark.local.dir", str(scratch / "local"))
    conf.set("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    conf.set("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).set("spark.pyspark.python", sys.executable)
    SparkContext._ensure_initialized(conf=conf)
    jvm: Any = SparkContext._jvm
    deploy, java_conf = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
    java_conf.set("spark.master.rest.enabled", "false")
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, java_conf)._1().address()
    url = f"spark://{HOSTS[0]}:{master.port()}"
    urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    none = jvm.scala.Option.empty()
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            *(host, 0, 0, 1, EXECUTOR_MB, urls, str(scratch / f"worker{number}"), jvm.scala.Option.apply(number), java_conf, none)
        )
    session = SparkSession.builder.config(conf=conf.setMaster(url)).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


class Conductor:
    """What a test may ask for. Each method takes and returns what JSON holds."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._queries: dict[str, Query] = {}

    def start(self, folder: str, faults: list[dict[str, Any]], speculation: bool, **options: Any) -> None:
        """Start the pipeline over the input that is there."""
        conf = self._session.sparkContext._jsc.sc().conf()
        conf.set("spark.speculation.multiplier", "1.0" if speculation else NEVER)
        self._queries[folder] = start(self._session, Path(folder), [Fault(**fault) for fault in faults], **options)

    def finish(self, folder: str) -> str:
        """Wait for the end; returns what went wrong."""
        query = self._queries.pop(folder)
        try:
            query.await_termination()
        finally:
            query.stop()
        return str(query.exception or "")

    def tasks_done(self) -> list[int]:
        """For each stage that runs now, how many of its tasks have ended well."""
        tracker = self._session.sparkContext.statusTracker()
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return [info.numCompletedTasks for info in infos if info is not None]

    def executors(self) -> int:
        """How many executors there are, as the scheduler sees it; the driver is not one."""
        return self._session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1


def main(scratch: Path, settings: dict[str, str]) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session = cluster(scratch, settings)
    conductor = Conductor(session)
    answers.write(json.dumps({"value": conductor.executors()}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        ask: Callable[..., Any] = getattr(conductor, request.pop("ask"))
        try:
            answers.write(json.dumps({"value": ask(**request)}) + "\n")
        except Exception as error:
            answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:4000]}) + "\n")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
