"""Rows with what another pipeline's state has for their keys: one multi-get per task and epoch.

All rows of an epoch see one epoch of the other state, whatever their event times: which rows it has for a time of theirs is a
question to a join as of that time. The driver chooses it before they start, holds it with a pin until the
next epoch begins, and sends its manifest along. Which one it was is kept as a task value, so each of our epochs tells what it
saw. An epoch that is tried again before it was committed may see a later one: nothing of the first try counts.
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
from floodplain.operators.kernel.definition import Described, Given, Written, free
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
    """What was asked for."""

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
                name, "a row may find something else when it is taken back than when it came", "look up one epoch, at=41"
            )
        return self

    def described(self, written: Written) -> Described:  # noqa: ARG002
        at = self.at if self.at == NOW else f"epoch {self.at}" if isinstance(self.at, int) else f"tag {self.at}"
        return Described(
            "lookup",
            (
                Given("table", [self.how, self.table], f"{self.how} lookup in {self.table}", free),
                Given("location", self.location, f"state at {self.location}", free),
                Given("at", self.at, f"as of {at}", free),
            ),
        )

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "StateLookupProcess":  # noqa: ARG002
        with self.looked_into(self.store(), pinned=False) as snapshot:
            schema = snapshot.table(self.table).schema
        named = {column.name for column in schema.keys}
        if set(self.on.values()) != named:
            raise BadInput(
                f"lookup: table {self.table} at {self.location} is keyed by {', '.join(sorted(named))}: "
                f"say with on= which columns they are; {', '.join(self.on.values())} was given"
            )
        found = [pa.field(self.prefix + column.name, column.arrow) for column in schema.subkeys + schema.values]
        for column in found:
            if rows.get_all_field_indices(column.name):
                raise BadInput(f"lookup: there is a column {column.name} already: add something to the names with prefix=")
        return StateLookupProcess(self, keys, tuple(rows), tuple(found))

    def store(self) -> Store:
        try:
            return Store.open(self.location, options=self.options)
        except StoreNotFound as missing:
            raise StoreNotFound(
                f"lookup: there is no state at {self.location}: start the pipeline that keeps it first, or check the location"
            ) from missing

    def looked_into(self, store: Store, *, pinned: bool) -> Snapshot:
        if self.at == NOW:
            return store.snapshot(pinned=pinned)
        if isinstance(self.at, int):
            return store.at(self.at, pinned=pinned)
        return store.at(tag=self.at, pinned=pinned)


class StateLookupProcess(KeyedBatchProcess, OperatorTraits):
    """A lookup with columns that are known."""

    seen: Any

    def __init__(
        self,
        asked: StateLookup,
        keys: tuple[str, ...],
        rows: tuple[pa.Field, ...],
        found: tuple[pa.Field, ...],
        held: bytes = b"",
    ) -> None:
        self._asked, self._keys, self._rows, self._found = asked, keys, rows, found
        self._manifest = held
        self._pinned: Snapshot | None = None
        self._schema = self.output = pa.schema([*rows, *found])
        self.output_time = asked.output_time

    def __getstate__(self) -> dict[str, Any]:
        """The pin stays with the driver."""
        return {**self.__dict__, "_pinned": None}

    def states(self) -> dict[str, State]:
        return {_SEEN: TaskValue("long", split=_to_all, merge=max)}

    def begun(self) -> "StateLookupProcess":
        before, self._pinned = self._pinned, self._asked.looked_into(_opened(self._asked), pinned=True)
        if before is not None:
            before.close()
        manifest = msgspec.msgpack.encode(self._pinned.manifest)
        return StateLookupProcess(self._asked, self._keys, self._rows, self._found, manifest)

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:  # noqa: ARG002
        """A row is never too late to be looked up."""
        return pa.array(np.ones(len(event_time), bool))

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table:  # noqa: ARG002
        manifest = msgspec.msgpack.decode(self._manifest, type=Manifest)
        self.seen.set(manifest.epoch)
        if not len(batch.rows):
            return self._schema.empty_table()
        store = _opened(self._asked)
        store.open_runs.keep_only(run for runs in manifest.runs.values() for run in runs)
        keys = [one_array(column) for column in batch.keys.columns]
        wanted = pa.table(dict(zip((self._asked.on[name] for name in self._keys), keys, strict=True)))
        known = np.ones(len(wanted), bool)
        for key in keys:
            known &= key.is_valid().to_numpy(zero_copy_only=False)
        answer = Snapshot(manifest, store.open_runs, store.history).table(self._asked.table).multi_get(wanted)
        of, none = batch.key_of_row, np.zeros(len(batch.key_of_row), np.int64)
        found = partners(of, none, answer.key_number, np.zeros(len(answer.key_number), np.int64), 0, 0)
        row, entry = found.pairs()
        row, entry = row[known[of[row]]], entry[known[of[row]]]
        if self._asked.how == "left":
            alone = np.setdiff1d(np.arange(len(of)), row)
            row, entry = np.concatenate([row, alone]), np.concatenate([entry, np.full(len(alone), -1)])
        at = pa.array(np.maximum(entry, 0), mask=entry < 0)
        names = [column.name.removeprefix(self._asked.prefix) for column in self._found]
        added = [one_array(answer.rows.column(name)).take(at) for name in names]
        return pa.Table.from_arrays([*batch.rows.take(pa.array(row)).columns, *added], schema=self._schema)

    def on_timers(self, batch: Batch, due: pa.Table, ctx: BatchContext) -> None:
        """It sets none."""


_stores: dict[tuple[str, tuple[tuple[str, str], ...]], Store] = {}
"""Open in this process, which lives on between epochs."""


def _opened(asked: StateLookup) -> Store:
    place = asked.location, tuple(sorted(asked.options.items()))
    if place not in _stores:
        _stores[place] = asked.store()
    return _stores[place]


def _to_all(value: int, slots: int) -> list[int]:
    return [value] * slots
