"""The contender Floodplain: a store with one table, used as a task of a pipeline uses it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.bench.workloads.state_updates import Kind
from floodplain.clock import Clock
from floodplain.keys import hash_columns
from floodplain.store.read.snapshot import TableView
from floodplain.store.rows.definition import Column, list_table, map_table, value_table
from floodplain.store.rows.layout import HASH
from floodplain.store.store import Store
from floodplain.store.write.epoch import Epoch
from floodplain.versions.records.schema import TableSchema

TABLE = "state"
NAME = "floodplain"

_USER = {"user": pa.string()}
_PROFILE = pa.struct(
    {
        "visits": pa.int64(),
        "last": pa.struct({"page": pa.string(), "at": pa.int64()}),
        "tags": pa.list_(pa.string()),
    }
)
SCHEMAS: dict[str, TableSchema] = {
    "value": value_table(TABLE, _USER, {"n": Column(pa.int64(), default=0), "s": Column(pa.float64(), default=0.0)}),
    "list": list_table(TABLE, _USER, {"item": pa.int64()}),
    "map": map_table(TABLE, _USER, {"page": pa.string()}, {"seen": pa.int64()}),
    "nested": value_table(TABLE, _USER, {"profile": _PROFILE}),
}


class Ours:
    """One kind of state in a store on a directory, synced to disk at every commit."""

    name = NAME

    def __init__(self, kind: Kind, home: Path, clock: Clock) -> None:
        self.kind = kind
        self._clock = clock
        self.compacted_s = 0.0
        """Time spent in ``finish_compactions``."""
        self.path = home / f"floodplain-{kind.name}"
        self.store = Store.open(self.path, create=True)
        self.writer = self.store.writer("bench")
        self.writer.define(SCHEMAS[kind.name])

    @property
    def view(self) -> TableView:
        return self.store.snapshot().table(TABLE)

    def update(self, batch: pa.Table) -> None:
        """One epoch, durable."""
        self.checkpoint(batch)

    def checkpoint(self, batch: pa.Table) -> None:
        epoch = self.writer.epoch()
        _WRITE[self.kind.name](self.view, epoch, batch)
        epoch.commit()

    def point(self, keys: pa.Table) -> int:
        """One call per key: ``get`` where a key has one entry, ``multi_get`` where it has several."""
        view = self.view
        if view.schema.subkeys:
            return sum(total(self.kind, view.multi_get(keys.slice(at, 1)).rows) for at in range(len(keys)))
        entries = (view.get(user) for user in keys.column("user").to_pylist())
        return sum(_NUMBER_OF[self.kind.name](values) for values in entries if values is not None)

    def multi_get(self, keys: pa.Table) -> int:
        return total(self.kind, self.view.multi_get(keys).rows)

    def scan(self, number: int = 0) -> int:  # noqa: ARG002
        return sum(total(self.kind, rows) for rows in self.view.scan(columns=[_NUMBER[self.kind.name]]))

    def restore(self, keys: pa.Table) -> int:
        """Opens the store and looks up keys, as a new process does for its first answer."""
        store = Store.open(self.path)
        answer = total(self.kind, store.snapshot().table(TABLE).multi_get(keys).rows)
        store.close()
        return answer

    def rows(self) -> pa.Table:
        rows = self.view.to_arrow().combine_chunks()
        if self.kind.name != "list":
            return rows
        # A scan returns the rows of a user adjacent and in order.
        user = rows.column("user").chunk(0).dictionary_encode()
        number = user.indices.to_numpy()
        starts = np.flatnonzero(np.append(True, number[1:] != number[:-1])) if len(number) else np.empty(0, np.int64)
        offsets = pa.array(np.append(starts, len(number)), pa.int32())
        items = pa.ListArray.from_arrays(offsets, rows.column("item").chunk(0))
        return pa.table({"user": rows.column("user").take(pa.array(starts)), "items": items})

    def compact(self) -> None:
        """A full compaction: into one run, or one per range of key groups if the table is large."""
        for _ in self.store.compact(full=True):
            pass

    def finish_compactions(self) -> None:
        """Runs the compactions that are due. As those of RocksDB, they are not in the time of the updates."""
        began_s = self._clock.monotonic_s()
        for _ in self.store.compact():
            pass
        self.compacted_s += self._clock.monotonic_s() - began_s

    def close(self) -> None:
        self.writer.close()
        self.store.close()


_NUMBER = {"value": "n", "list": "item", "map": "seen", "nested": "profile"}


_NUMBER_OF: dict[str, Callable[[dict[str, Any]], int]] = {
    "value": lambda values: values["n"],
    "nested": lambda values: values["profile"]["visits"],
}
"""Of one entry, as ``total`` of rows."""


def total(kind: Kind, rows: pa.Table) -> int:
    """The sum of a kind's number over the rows of a lookup or scan."""
    column = rows.column(_NUMBER[kind.name])
    if kind.name == "nested":
        column = pc.struct_field(column, "visits")
    return pc.sum(column).as_py() or 0


def write_values(view: TableView, epoch: Epoch, batch: pa.Table) -> None:
    """Read, add, write back. Keys are hashed and sorted once for both, as in a task of a pipeline."""
    batch = _by_hash(batch)
    values = view.multi_get(batch.select(["user", HASH])).aligned()
    added = {name: pc.add(values.column(name), batch.column(name)) for name in ("n", "s")}
    epoch.put(TABLE, batch.select(["user", HASH]).append_column("n", added["n"]).append_column("s", added["s"]))


def _by_hash(batch: pa.Table) -> pa.Table:
    hashes = hash_columns([batch.column("user")])
    order = np.argsort(hashes)
    return batch.take(pa.array(order)).append_column(HASH, pa.array(hashes[order]))


def _write_lists(view: TableView, epoch: Epoch, batch: pa.Table) -> None:  # noqa: ARG001
    """Append without reading: a position is (epoch, row number in the batch)."""
    items = batch.column("items").combine_chunks()
    user = batch.column("user").combine_chunks().take(pc.list_parent_indices(items))
    position = (epoch.number << 32) + np.arange(len(user), dtype=np.uint64)
    epoch.put(TABLE, pa.table({"user": user, "position": position, "item": pc.list_flatten(items)}))


def _write_maps(view: TableView, epoch: Epoch, batch: pa.Table) -> None:  # noqa: ARG001
    epoch.put(TABLE, batch)


def _write_nested(view: TableView, epoch: Epoch, batch: pa.Table) -> None:
    batch = _by_hash(batch).combine_chunks()
    keys = batch.select(["user", HASH])
    visits = pc.struct_field(view.multi_get(keys).aligned().column("profile"), "visits").combine_chunks()
    last = pa.StructArray.from_arrays(
        [batch.column("page").combine_chunks(), batch.column("at").combine_chunks()], ["page", "at"]
    )
    profile = pa.StructArray.from_arrays(
        [pc.add(pc.fill_null(visits, 0), 1), last, batch.column("tags").combine_chunks()], ["visits", "last", "tags"]
    )
    epoch.put(TABLE, keys.append_column("profile", profile))


_WRITE: dict[str, Callable[[TableView, Epoch, pa.Table], None]] = {
    "value": write_values,
    "list": _write_lists,
    "map": _write_maps,
    "nested": _write_nested,
}
