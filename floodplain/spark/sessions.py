"""Settings of a Spark session for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LIGHT = {
    _MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Spark's own way to write a checkpoint starts two processes per file, for its permissions, and writes two checksums. Our log has
all that a checkpoint says, so that a plain file with Hadoop's own checksum beside it will do."""


@contextmanager
def settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session has these settings within, and its own again behind."""
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


@contextmanager
def light_checkpoint(session: SparkSession) -> Iterator[None]:
    """A streaming query that starts within writes its checkpoint fast, unless the user has chosen how to write one."""
    if session.conf.get(_MANAGER, None) is not None:
        yield
        return
    with settings(session, _LIGHT):
        yield
