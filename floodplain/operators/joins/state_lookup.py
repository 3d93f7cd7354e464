"""Lookup join with another pipeline's state: one multi-get per task and epoch.

All rows of an epoch read one snapshot of the other state, whatever their event times; for the version at a row's time use an
as-of join. The driver chooses the snapshot before the tasks start, pins it until the next epoch begins, and sends its manifest
to the tasks. Its epoch is stored as a task value, so each of our epochs records what it read. A retried epoch may read a later
snapshot: nothing of the first attempt was committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput, StoreNotFound
from floodplain.operators.changelog.changelog import changelog_refused
from floodplain.operators.joins.match import partners
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import State, TaskValue
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.rows.layout import one_array
from floodplain.store.store import Store
from floodplain.versions.records.manifest import Manifest

LookupHow: TypeAlias = Literal["left", "inner"]
NOW = "now"
_SEEN = "seen"


@dataclass(frozen=True)
class StateLookup(KeyedBatchProcess, OperatorTraits):
    """A lookup join, before it is bound to a schema."""

    location: str
    table: str
    on: Mapping[str, str]
    """Our key columns → those of the table."""
    how: LookupHow = "left"
    at: str | int = NOW
    """``now``, an epoch, or a tag: for all rows alike."""
    prefix: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    output_time: str | None = None

    passes_changes = True

    def for_changes(self, name: str) -> "StateLookup":
        if not isinstance(self.at, int):
            raise changelog_refused(
                name, "a retraction may find another entry than the insertion did", "look up one epoch, at=41"
            )
        return self

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        at = self.at if self.at == NOW else f"epoch {self.at}" if isinstance(self.at, int) else f"tag {self.at}"
        return OperatorSpec(
            "lookup",
            (
                ParameterSpec("table", [self.how, self.table], f"{self.how} lookup in {self.table}", free),
                ParameterSpec("location", self.location, f"state at {self.location}", free),
                ParameterSpec("at", self.at, f"as of {at}", free),
            ),
        )

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "StateLookupProcess":  # noqa: ARG002
        with self.snapshot_of(self.store(), pinned=False) as snapshot:
            schema = snapshot.table(self.table).schema
        named = {column.name for column in schema.keys}
        if set(self.on.values()) != named:
            raise BadInput(
                f"lookup: table {self.table} at {self.location} is keyed by {', '.join(sorted(named))}: "
                f"say with on= which columns they are; {', '.join(self.on.values())} was given"
            )
        columns = [pa.field(self.prefix + column.name, column.arrow) for column in schema.subkeys + schema.values]
        for column in columns:
            if rows.get_all_field_indices(column.name):
                raise BadInput(f"lookup: there is a column {column.name} already: add something to the names with prefix=")
        return StateLookupProcess(self, keys, tuple(rows), tuple(columns))

    def store(self) -> Store:
        try:
            return Store.open(self.location, options=self.options)
        except StoreNotFound as missing:
            raise StoreNotFound(
                f"lookup: there is no state at {self.location}: start the pipeline that keeps it first, or check the location"
            ) from missing

    def snapshot_of(self, store: Store, *, pinned: bool) -> Snapshot:
        if self.at == NOW:
            return store.snapshot(pinned=pinned)
        if isinstance(self.at, int):
            return store.at(self.at, pinned=pinned)
        return store.at(tag=self.at, pinned=pinned)


class StateLookupProcess(KeyedBatchProcess, OperatorTraits):
    """A lookup join bound to the schemas of its input and of the table."""

    seen: Any

    def __init__(
        self,
        lookup: StateLookup,
        keys: tuple[str, ...],
        rows: tuple[pa.Field, ...],
        columns: tuple[pa.Field, ...],
        manifest: bytes = b"",
    ) -> None:
        self._lookup, self._keys, self._rows, self._columns = lookup, keys, rows, columns
        self._manifest = manifest
        self._pinned: Snapshot | None = None
        self._schema = self.output = pa.schema([*rows, *columns])
        self.output_time = lookup.output_time

    def __getstate__(self) -> dict[str, Any]:
        """The pin stays with the driver."""
        return {**self.__dict__, "_pinned": None}

    def states(self) -> dict[str, State]:
        return {_SEEN: TaskValue("long", split=_to_all, merge=max)}

    def for_epoch(self) -> "StateLookupProcess":
        before, self._pinned = self._pinned, self._lookup.snapshot_of(_opened(self._lookup), pinned=True)
        if before is not None:
            before.close()
        return self.with_fixed(msgspec.msgpack.encode(self._pinned.manifest))

    @property
    def fixed(self) -> bytes:
        return self._manifest

    def with_fixed(self, fixed: bytes) -> "StateLookupProcess":
        return StateLookupProcess(self._lookup, self._keys, self._rows, self._columns, fixed)

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        """No row is late."""
        return pa.array(np.ones(len(event_time), bool))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:  # noqa: ARG002
        manifest = msgspec.msgpack.decode(self._manifest, type=Manifest)
        self.seen.set(manifest.epoch)
        if not len(batch.rows):
            return self._schema.empty_table()
        store = _opened(self._lookup)
        store.open_runs.keep_only(run for runs in manifest.runs.values() for run in runs)
        keys = [one_array(column) for column in batch.keys.columns]
        wanted = pa.table(dict(zip((self._lookup.on[name] for name in self._keys), keys, strict=True)))
        known = np.ones(len(wanted), bool)
        for key in keys:
            known &= key.is_valid().to_numpy(zero_copy_only=False)
        answer = Snapshot(manifest, store.open_runs, store.history).table(self._lookup.table).multi_get(wanted)
        of, none = batch.key_of_row, np.zeros(len(batch.key_of_row), np.int64)
        matches = partners(of, none, answer.key_number, np.zeros(len(answer.key_number), np.int64), 0, 0)
        row, entry = matches.pairs()
        row, entry = row[known[of[row]]], entry[known[of[row]]]
        if self._lookup.how == "left":
            alone = np.setdiff1d(np.arange(len(of)), row)
            row, entry = np.concatenate([row, alone]), np.concatenate([entry, np.full(len(alone), -1)])
        at = pa.array(np.maximum(entry, 0), mask=entry < 0)
        names = [column.name.removeprefix(self._lookup.prefix) for column in self._columns]
        added = [one_array(answer.rows.column(name)).take(at) for name in names]
        return pa.Table.from_arrays([*batch.rows.take(pa.array(row)).columns, *added], schema=self._schema)

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:
        """It sets none."""


_stores: dict[tuple[str, tuple[tuple[str, str], ...]], Store] = {}
"""Stores open in this process, which is reused between epochs."""


def _opened(lookup: StateLookup) -> Store:
    location = lookup.location, tuple(sorted(lookup.options.items()))
    if location not in _stores:
        _stores[location] = lookup.store()
    return _stores[location]


def _to_all(value: int, slots: int) -> list[int]:
    return [value] * slots
