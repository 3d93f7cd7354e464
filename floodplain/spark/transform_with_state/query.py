"""A running drop-in under the names of Spark's ``StreamingQuery``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from floodplain.errors import FloodplainError
from floodplain.spark.runtime import Query


def as_spark(error: Exception) -> Exception:
    """The error that ended a query, in the form that code for Spark expects: our message first, then where it happened."""
    if not isinstance(error, FloodplainError):
        return error
    return StreamingQueryException("\n".join([str(error), *getattr(error, "__notes__", [])]))


@contextmanager
def _spark_errors() -> Iterator[None]:
    try:
        yield
    except FloodplainError as error:
        raise as_spark(error) from error


class StatefulQuery:
    """Spark's ``StreamingQuery`` over Floodplain's ``Query``, which is ``floodplain``."""

    def __init__(self, query: Query, name: str | None) -> None:
        self.floodplain = query
        self.name = name

    @property
    def _spark(self) -> StreamingQuery:
        query = self.floodplain._query
        assert query is not None
        return query

    @property
    def id(self) -> str:
        return str(self._spark.id)

    @property
    def runId(self) -> str:
        return str(self._spark.runId)

    @property
    def isActive(self) -> bool:
        return self.floodplain.is_active

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end. Raises what ended it, if that was an error. At the end the state is let go."""
        with _spark_errors():
            ended = self.floodplain.await_termination(timeout)
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        with _spark_errors():
            self.floodplain.process_all_available()

    def stop(self) -> None:
        self.floodplain.stop()

    def exception(self) -> Exception | None:
        error = self.floodplain.exception
        return None if error is None else as_spark(error)

    @property
    def status(self) -> dict[str, Any]:
        return self.floodplain.status

    @property
    def lastProgress(self) -> Any:
        return self._spark.lastProgress

    @property
    def recentProgress(self) -> Any:
        return self._spark.recentProgress

    def explain(self, extended: bool = False) -> None:
        self._spark.explain(extended)
