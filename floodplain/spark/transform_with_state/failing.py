"""A query that its first batch ends: Spark runs ``init`` and checks schemas with that, so what they raise ends the query."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from pyspark.sql import DataFrame

from floodplain.errors import FloodplainError
from floodplain.runtime.progress import EpochProgress
from floodplain.scratch import Scratch
from floodplain.spark.session_conf import SPARKS
from floodplain.tiers.open import folder_of


class FailingQuery:
    """Stands for the ``Query`` of a pipeline on the state at ``location``, from where that left off. It writes no state."""

    def __init__(
        self, rows: DataFrame, error: FloodplainError, location: str, trigger: Mapping[str, Any], name: str | None
    ) -> None:
        self._error = error
        self._scratch = Scratch("failing")
        folder = folder_of(location)
        if folder is not None and (folder / "checkpoint").is_dir():
            shutil.copytree(folder / "checkpoint", self._scratch.path, dirs_exist_ok=True)
        writing = rows.writeStream.foreachBatch(self._fail).option("checkpointLocation", str(self._scratch.path))
        writing = writing if name is None else writing.queryName(name)
        self._query = (writing.trigger(**trigger) if trigger else writing).start()

    def _fail(self, rows: DataFrame, epoch: int) -> NoReturn:  # noqa: ARG002
        raise self._error

    @property
    def progress(self) -> list[EpochProgress]:
        return []

    @property
    def is_active(self) -> bool:
        return bool(self._query.isActive)

    @property
    def exception(self) -> Exception | None:
        return None if self._query.exception() is None else self._error

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._query.status)

    def await_termination(self, seconds: float | None = None) -> bool:
        try:
            ended = self._query.awaitTermination(seconds)  # type: ignore[arg-type]
        except SPARKS:
            self._fail_here()
        return ended is None or bool(ended)

    def process_all_available(self) -> None:
        try:
            self._query.processAllAvailable()
        except SPARKS:
            self._fail_here()

    def _fail_here(self) -> NoReturn:
        self._scratch.remove()
        raise self._error from None

    def stop(self) -> None:
        with suppress(*SPARKS):
            self._query.stop()
        self._scratch.remove()
