"""A running drop-in under the names of Spark's ``StreamingQuery``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from floodplain.errors import FloodplainError
from floodplain.spark.runtime import Query
from floodplain.spark.transform_with_state.errors import as_spark
from floodplain.spark.transform_with_state.failing import FailingQuery
from floodplain.spark.transform_with_state.progress import ProgressReports


class StatefulQuery:
    """Spark's ``StreamingQuery`` over Floodplain's ``Query``, which is ``floodplain``."""

    def __init__(self, query: Query | FailingQuery, name: str | None) -> None:
        self.floodplain: Any = query
        self.name = name
        self.progress = ProgressReports(query)

    def _as_spark(self, error: Exception) -> Exception:
        return as_spark(error, self.id, self.runId)

    @contextmanager
    def _spark_errors(self) -> Iterator[None]:
        try:
            yield
        except FloodplainError as error:
            raise self._as_spark(error) from error

    @property
    def _spark(self) -> StreamingQuery:
        query: StreamingQuery | None = self.floodplain._query
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
        return bool(self.floodplain.is_active)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end. Raises what ended it, if that was an error. At the end the state is let go."""
        with self._spark_errors():
            ended = self.floodplain.await_termination(timeout)
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        with self._spark_errors():
            self.floodplain.process_all_available()

    def stop(self) -> None:
        self.floodplain.stop()

    def exception(self) -> Exception | None:
        error = self.floodplain.exception
        return None if error is None else self._as_spark(error)

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.floodplain.status)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        return self.progress.last()

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        return self.progress.recent()

    def explain(self, extended: bool = False) -> None:
        self._spark.explain(extended)
