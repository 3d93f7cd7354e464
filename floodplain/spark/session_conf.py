"""Sets settings of a Spark session temporarily."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

SPARKS = (PySparkException, Py4JError)
"""Errors of Spark itself."""
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LIGHT = {
    _MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Spark's own way to write a checkpoint starts two processes per file, for its permissions, and writes two checksums. Our log has
all that a checkpoint has, so a plain file with Hadoop's own checksum is enough."""
_OPENING_MS = 60_000
"""How long to wait until a query has opened its sources, which it does in its own thread. Sources write to the checkpoint, too,
with the settings of that moment."""
_WITHOUT_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str((1 << 31) - 1)
_BUFFER = "spark.sql.execution.pandas.udf.buffer.size"
_BUFFER_BYTES = str(1 << 20)
SMALL_BATCH_BYTES = 4 << 20
"""If a full batch of rows of the last known size is no larger than this, it is far below Spark's limit of 64 MB."""


@contextmanager
def settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session has these settings within the ``with`` block, and its own again after it."""
    before = {name: session.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def start_light(writing: DataStreamWriter, session: SparkSession) -> StreamingQuery:
    """Starts a streaming query that writes its checkpoint fast, unless the user has chosen how to write one."""
    if session.conf.get(_MANAGER, None) is not None:
        return writing.start()
    with settings(session, _LIGHT):
        query = writing.start()
        try:
            with suppress(Py4JJavaError, PySparkException):  # what keeps a source from being opened is for the query to say
                query._jsq.streamingQuery().awaitInitialization(_OPENING_MS)
        except BaseException:  # as an interrupt by the user: nobody would have the query to stop it
            query.stop()
            raise
        return query


def runs_without_data(session: SparkSession) -> bool:
    """Whether stateful queries of this session have epochs when no data comes."""
    return is_on(session, _WITHOUT_DATA)


def is_on(session: SparkSession, name: str) -> bool:
    """A setting of Spark's that is true or false."""
    return (session.conf.get(name) or "").lower() == "true"


class ToPython:
    """Speeds up the transfer of rows to Python, in sessions cloned from this one. What the user has set stays.

    Rows are written through a larger buffer. And where rows are small, Spark does not compute the size of the batch after each
    row, which is a third of the time that the transfer takes.
    """

    def __init__(self, session: SparkSession) -> None:
        self._buffer_is_ours, self._limit_is_ours = (session.conf.get(name, None) is None for name in (_BUFFER, _BATCH_BYTES))
        self._batch_rows = int(session.conf.get(_BATCH_ROWS) or 0)

    def use(self, session: SparkSession) -> None:
        if self._buffer_is_ours:
            session.conf.set(_BUFFER, _BUFFER_BYTES)

    @contextmanager
    def sending(self, session: SparkSession, row_bytes: float | None) -> Iterator[None]:
        """``row_bytes``: the size of such rows in the last epoch; None if it is not known."""
        small = row_bytes is not None and 0 < self._batch_rows * max(row_bytes, 1) <= SMALL_BATCH_BYTES
        if not (small and self._limit_is_ours):
            yield
            return
        session.conf.set(_BATCH_BYTES, _NO_LIMIT)
        try:
            yield
        finally:
            session.conf.unset(_BATCH_BYTES)
