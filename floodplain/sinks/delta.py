"""Output as a Delta table: the staged files become the table's files, one commit per epoch."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodplain.clock import SystemClock
from floodplain.errors import BadInput, Conflict, SchemaMismatch
from floodplain.sinks.base import Sink, ahead_of_state, as_flag, required
from floodplain.sinks.delta_schema import check_names, check_table, needs_merge
from floodplain.sinks.delta_stats import stats
from floodplain.sinks.files import LocalFiles, open_files
from floodplain.sinks.staged import open_staged, staged_batches
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.redact import without_credentials

TRIES = 10
"""Attempts to commit while others change the table at the same time. Concurrent appends do not conflict, so they do not count."""


class DeltaSink(Sink):
    """A Delta table in a directory or object store. Exactly once, and readers see whole epochs.

    A commit carries ``app`` and the epoch as Delta's application transaction. Delta refuses the second of two commits of one
    ``app`` that started from the same version, but not one that starts later: so the epoch is compared first, on the very
    version that the commit starts from. Files placed by a driver that crashed before its commit are in no version of the
    table, and are replaced by equal ones. An epoch without rows makes no commit: the number of the next one covers it.

    ``merge_schema``: columns that the table lacks are added to it, in the commit of the first epoch that has rows with them. The
    rows of that epoch are written again by the Delta library, which merges a schema only when it writes the rows itself. If the
    driver crashes before that commit, a file remains that is in no version of the table, for ``VACUUM`` to delete.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        merge_schema: bool | str = False,
    ) -> None:
        if not os.fspath(path):
            raise BadInput('write("delta") needs a path: write("delta", path="table")')
        self._delta = required("deltalake", "delta")
        self._files = open_files(path, storage_options)
        self._path = str(self._files.root) if isinstance(self._files, LocalFiles) else os.fspath(path)
        self._options = {key: str(value) for key, value in (storage_options or {}).items()} or None
        self._merge = as_flag("merge_schema", merge_schema)
        self._clock = SystemClock()
        self._app = ""
        self._table: Any = None

    @property
    def target(self) -> str:
        return without_credentials(self._path)

    def check(self, schema: pa.Schema) -> None:
        try:
            table = self._opened()
        except self._delta.exceptions.TableNotFoundError:
            self._check_types(schema)
        else:
            self._needs_merge(table, schema)

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self._app, self._table = app, None
        table = self._created(schema)
        self._needs_merge(table, schema)
        newest = table.transaction_version(app) or 0
        if newest > committed:
            raise ahead_of_state(f"the table at {self.target}", newest, committed)
        self._files.tidy(app)

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        if not staged:
            return
        failure: Exception | None = None
        for _ in range(TRIES):
            table = self._opened()
            if (table.transaction_version(self._app) or 0) >= epoch:
                return
            merge = self._needs_merge(table, schema)
            added = [] if merge else self._placed(epoch, staged, blobs)
            self._files.sync()
            try:
                if merge:
                    self._write(table, epoch, pa.RecordBatchReader.from_batches(schema, staged_batches(staged, blobs, schema)))
                else:
                    self._commit(table, epoch, added)
            except self._delta.exceptions.CommitFailedError as error:
                failure, self._table = error, None
            else:
                return
        raise Conflict(f"epoch {epoch} could not be committed to the table at {self.target} in {TRIES} tries: {failure}")

    def _placed(self, epoch: int, staged: Sequence[str], blobs: Blobs) -> list[Any]:
        files = [(paths.published(epoch, number, self._app), name) for number, name in enumerate(sorted(staged))]
        sizes = self._files.place_all(files, blobs)
        return [self._added(name, staged, size, blobs) for (name, staged), size in zip(files, sizes, strict=True)]

    def _added(self, name: str, staged: str, size: int, blobs: Blobs) -> Any:
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
        table.create_write_transaction(list(added), "append", table.schema(), commit_properties=self._properties(epoch))
        self._sync_log(table, version)

    def _write(self, table: Any, epoch: int, rows: pa.RecordBatchReader) -> None:
        """Commits rows together with the columns that they add to the table."""
        version, before = table.version(), set(table.file_uris())
        self._delta.write_deltalake(
            table, rows, mode="append", schema_mode="merge", commit_properties=self._properties(epoch, blind=False)
        )
        if isinstance(self._files, LocalFiles):
            table.update_incremental()
            new = set(table.file_uris()) - before
            self._files.sync_below("", [Path(uri).name for uri in new])
        self._sync_log(table, version)

    def _properties(self, epoch: int, *, blind: bool = True) -> Any:
        return self._delta.CommitProperties(
            app_transactions=[self._delta.Transaction(self._app, epoch, self._clock.now_ms())],
            custom_metadata={"isBlindAppend": blind},
        )

    def _sync_log(self, table: Any, version: int) -> None:
        if isinstance(self._files, LocalFiles):
            table.update_incremental()
            self._files.sync_below("_delta_log", [f"{n:020d}.json" for n in range(version + 1, table.version() + 1)])

    def _opened(self) -> Any:
        """The newest version. The table stays open between epochs, so that only new entries of its log are read."""
        if self._table is None:
            self._table = self._delta.DeltaTable(self._path, storage_options=self._options)
        else:
            self._table.update_incremental()
        return self._table

    def _created(self, schema: pa.Schema) -> Any:
        """The table, created if absent. Another process may create it at the same time."""
        try:
            return self._opened()
        except self._delta.exceptions.TableNotFoundError:
            pass
        self._check_types(schema)
        try:
            self._delta.DeltaTable.create(self._path, schema, storage_options=self._options)
        except self._delta.exceptions.DeltaError:
            return self._opened()
        return self._opened()

    def _check_types(self, schema: pa.Schema) -> None:
        check_names(schema.names)
        for field in schema:
            try:
                self._delta.Schema.from_arrow(pa.schema([field]))
            except Exception as error:  # deltalake has no error class for it
                raise SchemaMismatch(f"a Delta table cannot have column {field.name} of type {field.type}") from error

    def _needs_merge(self, table: Any, schema: pa.Schema) -> bool:
        """Whether the output has columns or fields that the table lacks. Raises ``SchemaMismatch`` if files of this schema cannot
        become files of the table."""
        where = f"the table at {self.target}"
        check_table(table, where)
        self._check_types(schema)
        return needs_merge(table, self._delta.Schema.from_arrow(schema), where, merge=self._merge)
