"""What Spark looks at when a query is started beside others: its name, and whether it runs already."""

import logging
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import SparkSession

from floodplain.spark.runtime import ACTIVE
from floodplain.spark.session_conf import is_on
from floodplain.store.store import Store

STOP_ACTIVE = "spark.sql.streaming.stopActiveRunOnRestart"

_log = logging.getLogger(__name__)


def check_name(spark: SparkSession, name: str | None) -> None:
    """Raises Spark's ``IllegalArgumentException`` if a query of this name runs in the session."""
    if name is None or all(query.name != name for query in spark.streams.active):
        return
    jvm: Any = spark._jvm
    raise convert_exception(
        jvm.java.lang.IllegalArgumentException(
            f"Cannot start query with name {name} as a query with that name is already active in this SparkSession"
        )
    )


def end_active_run(spark: SparkSession, store: Store) -> None:
    """If a query of this process runs on the state, stop it, or raise as Spark does if it is told not to stop it.

    One that is ending is waited for.
    """
    active = ACTIVE.get(store.head.store)
    if active is None:
        return
    if active.is_ending:
        active.await_release()
        return
    query_id = active.query_id
    if is_on(spark, STOP_ACTIVE):
        _log.warning("the query %s is stopped: it is started again on the same state", query_id)
        active.stop()
        return
    jvm: Any = spark._jvm
    text = (
        f"Cannot start query with id {query_id} as another query with same id is already active. Perhaps you are attempting to "
        "restart a query from checkpoint that is already active. You may stop the old query by setting the SQL configuration: "
        f'spark.conf.set("{STOP_ACTIVE}", true) and retry.'
    )
    raise Py4JJavaError("An error occurred while calling start.\n", jvm.java.lang.IllegalStateException(text))
