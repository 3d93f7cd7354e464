"""Output as a Delta table: the staged files become the table's files, one commit per epoch."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodplain.clock import SystemClock
from floodplain.errors import BadInput, Conflict, SchemaMismatch
from floodplain.spark.delta_stats import stats
from floodplain.spark.sink import Sink, ahead, open_staged, required
from floodplain.spark.sink_files import LocalFiles, open_files
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs

TRIES = 10
"""Commits tried when others change the table at the same moment. Appends of others are no conflict and count for nothing."""
_UNCHECKED = ("delta.constraints.", "delta.columnMapping.mode")


class DeltaSink(Sink):
    """A Delta table in a directory or object store. Exactly once, and readers see whole epochs.

    A commit carries ``app`` and the epoch as Delta's application transaction. Delta refuses the second of two commits of one
    ``app`` that started from the same version, but not one that starts later: so the epoch is compared first, on the very
    version that the commit starts from. Files placed by a driver that died before its commit are in no version of the
    table, and are replaced by equal ones. An epoch without rows makes no commit: the next one's number covers it.
    """

    def __init__(self, path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        if not os.fspath(path):
            raise BadInput('write("delta") needs a path: write("delta", path="table")')
        self._delta = required("deltalake", "delta")
        self._files = open_files(path, storage_options)
        self._path = str(self._files.root) if isinstance(self._files, LocalFiles) else os.fspath(path)
        self._options = {key: str(value) for key, value in (storage_options or {}).items()} or None
        self._clock = SystemClock()
        self._app = ""
        self._table: Any = None

    @property
    def target(self) -> str:
        return self._path

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self._app, self._table = app, None
        table = self._created(schema)
        self._fits(table, schema)
        newest = table.transaction_version(app) or 0
        if newest > committed:
            raise ahead(f"the table at {self._path}", newest, committed)
        self._files.tidy(app)

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        if not staged:
            return
        failure: Exception | None = None
        for _ in range(TRIES):
            table = self._opened()
            if (table.transaction_version(self._app) or 0) >= epoch:
                return
            self._fits(table, schema)
            added = [self._placed(epoch, number, name, blobs) for number, name in enumerate(sorted(staged))]
            self._files.settle()
            try:
                self._commit(table, epoch, added)
            except self._delta.exceptions.CommitFailedError as error:
                failure, self._table = error, None
            else:
                return
        raise Conflict(f"epoch {epoch} could not be committed to the table at {self._path} in {TRIES} tries: {failure}")

    def _placed(self, epoch: int, number: int, staged: str, blobs: Blobs) -> Any:
        name = paths.published(epoch, number, self._app)
        size = self._files.place(name, staged, blobs)
        return self._delta.transaction.AddAction(
            path=name,
            size=size,
            partition_values={},
            modification_time=self._clock.now_ms(),
            data_change=True,
            stats=stats(open_staged(staged, blobs)),
        )

    def _commit(self, table: Any, epoch: int, added: Sequence[Any]) -> None:
        version = table.version()
        properties = self._delta.CommitProperties(
            app_transactions=[self._delta.Transaction(self._app, epoch, self._clock.now_ms())],
            custom_metadata={"isBlindAppend": True},
        )
        table.create_write_transaction(list(added), "append", table.schema(), commit_properties=properties)
        if isinstance(self._files, LocalFiles):
            table.update_incremental()
            self._files.settle_below("_delta_log", [f"{n:020d}.json" for n in range(version + 1, table.version() + 1)])

    def _opened(self) -> Any:
        """The newest version. Kept open between epochs, so that only what is new in its log is read."""
        if self._table is None:
            self._table = self._delta.DeltaTable(self._path, storage_options=self._options)
        else:
            self._table.update_incremental()
        return self._table

    def _created(self, schema: pa.Schema) -> Any:
        """The table, made if it is not there. Another process may make it at the same moment."""
        try:
            return self._opened()
        except self._delta.exceptions.TableNotFoundError:
            pass
        for field in schema:
            try:
                self._delta.Schema.from_arrow(pa.schema([field]))
            except Exception as error:  # deltalake has no class of its own for it
                raise SchemaMismatch(f"a Delta table cannot hold column {field.name} of type {field.type}") from error
        try:
            self._delta.DeltaTable.create(self._path, schema, storage_options=self._options)
        except self._delta.exceptions.DeltaError:
            return self._opened()
        return self._opened()

    def _fits(self, table: Any, schema: pa.Schema) -> None:
        """Raises unless files of this schema can become files of the table as they are."""
        where = f"the table at {self._path}"
        metadata = table.metadata()
        if metadata.partition_columns:
            raise SchemaMismatch(f"{where} is partitioned by {', '.join(metadata.partition_columns)}: use one that is not")
        for name, value in metadata.configuration.items():
            if name.startswith(_UNCHECKED) and value != "none":
                raise SchemaMismatch(f"{where} has {name}={value}, which files written elsewhere cannot keep: use another table")
        theirs = {field.name: field for field in table.schema().fields}
        ours = {field.name: field for field in self._delta.Schema.from_arrow(schema).fields}
        for name in sorted(theirs.keys() ^ ours.keys()):
            raise SchemaMismatch(
                f"column {name} is in {'the output' if name in ours else where} only: name another table or output"
            )
        for name, field in ours.items():
            if not _same_type(theirs[name].type, field.type):
                raise SchemaMismatch(f"column {name} of {where} is {theirs[name].type}, the output has {field.type}")
            if field.nullable and not theirs[name].nullable:
                raise SchemaMismatch(f"column {name} of {where} takes no nulls, and the output may have some")


def _same_type(one: Any, other: Any) -> bool:
    return str(one) == str(other)
