"""Makes the readers of state known to a Spark session."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Any

from pyspark.sql import SparkSession

from floodplain.spark.session_conf import SPARKS
from floodplain.spark.state_reader.metadata_source import StateMetadataSource
from floodplain.spark.state_reader.state_source import StateStoreSource

_known: set[str] = set()
_lock = Lock()


def register_state_sources(spark: SparkSession) -> None:
    """Let ``spark.read`` take the formats ``floodplain-statestore`` and ``floodplain-state-metadata`` in this session.

    A session in which the drop-in has started a query knows them already. It may be called again.
    """
    if _is_new(spark):
        _register(spark)


def register_in_background(spark: SparkSession) -> None:
    """As ``register_state_sources``. The first time, Spark looks for data sources of all Python packages, in a process that it
    starts for it: no query waits for that, and what is registered can be used before it is over."""
    if _is_new(spark):
        Thread(target=_register_quietly, args=(spark,), name="floodplain-state-sources", daemon=True).start()


def _is_new(spark: SparkSession) -> bool:
    session: Any = spark._jsparkSession
    with _lock:
        number = str(session.sessionUUID())
        new = number not in _known
        _known.add(number)
        return new


def _register_quietly(spark: SparkSession) -> None:
    with suppress(*SPARKS, OSError):  # the session may have been stopped meanwhile
        _register(spark)


def _register(spark: SparkSession) -> None:
    with _active(spark):
        for source in (StateStoreSource, StateMetadataSource):
            spark.dataSource.register(source)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """This session is the active one of this thread: Spark asks that one whether a data source is registered already."""
    sessions: Any = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
