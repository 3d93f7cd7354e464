"""The change feed of a variable: what each batch did to it, as updates, appends and deletes."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.keys import columns_equal
from floodplain.spark.state_reader.batches import batch_of
from floodplain.spark.state_reader.columns import Shape, by_key, is_there, packed
from floodplain.spark.state_reader.variables import Variable
from floodplain.store.read.diff import Change, changes
from floodplain.store.read.snapshot import Snapshot, logical
from floodplain.store.rows.evolution import adapt
from floodplain.store.rows.layout import one_array
from floodplain.store.store import Store
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema

UPDATE, APPEND, DELETE = "update", "append", "delete"


class ChangeFeed:
    """The changes of one partition, from one epoch to the next.

    Spark tells every call that wrote; we tell what a batch changed: one row for a value or an entry that is another one after it,
    however often it was written. The elements of a list that only grew are appended; one of which elements went is written anew.
    """

    def __init__(self, store: Store, shape: Shape, schema: TableSchema, slot: int, groups: GroupRanges) -> None:
        """``schema``: of the table at the last of the epochs."""
        self._store, self._shape, self._schema = store, shape, schema
        self._slot, self._groups = slot, groups

    def between(self, older: Manifest, newer: Manifest) -> Iterator[pa.RecordBatch]:
        """What the newer epoch changed."""
        variable, batch = self._shape.variable, batch_of(newer.epoch)
        written = newer.schema(variable.table)
        if written is None:
            return
        runs, window_bytes, expiries = self._store.open_runs, self._store.history.settings.window_bytes, variable.ttl is not None
        for change in changes(older, newer, variable.table, runs, window_bytes, groups=self._groups, expiries=expiries):
            rows = self._logical(change, written)
            yield from self._list(rows, newer, batch) if variable.kind == "list" else self._entries(rows, batch)

    def _logical(self, change: Change, written: TableSchema) -> dict[str, pa.Table]:
        parts = {"added": change.added, "before": change.before, "after": change.after, "deleted": change.deleted}
        return {name: logical(self._schema, adapt(rows, written, self._schema), expiries=True) for name, rows in parts.items()}

    def _entries(self, change: dict[str, pa.Table], batch: int) -> Iterator[pa.RecordBatch]:
        """Of values, and of the entries of maps."""
        variable = self._shape.variable
        before, after = change["before"], change["after"]
        was, now = is_there(variable, before), is_there(variable, after)
        new = _present(variable, change["added"])
        updated = now & ~(was & _same(variable, before, after))
        yield from self._rows(batch, UPDATE, pa.concat_tables([new, after.filter(pa.array(updated))]))
        gone = [_present(variable, change["deleted"]), before.filter(pa.array(was & ~now))]
        yield from self._rows(batch, DELETE, pa.concat_tables(gone))

    def _list(self, change: dict[str, pa.Table], newer: Manifest, batch: int) -> Iterator[pa.RecordBatch]:
        variable = self._shape.variable
        gone = pa.concat_tables([change["deleted"], change["before"]])
        rewritten = _one_per_key(variable, gone)
        appended = _without(variable, pa.concat_tables([change["added"], change["after"]]), rewritten)
        yield from self._rows(batch, APPEND, appended)
        if not len(rewritten):
            return
        snapshot = Snapshot(newer, self._store.open_runs, self._store.history)
        keys = rewritten.select(list(variable.key.columns))
        left = snapshot.stored(variable.table, self._schema).multi_get(keys, expiries=True)
        yield from self._rows(batch, DELETE, rewritten.filter(pa.array(~left.found)))
        first = np.append(True, left.key_number[1:] != left.key_number[:-1])[: len(left.rows)]
        yield from self._rows(batch, np.where(first, UPDATE, APPEND), left.rows)

    def _rows(self, batch: int, kinds: str | np.ndarray, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """As rows of the feed. A delete has no value."""
        if not len(rows):
            return
        variable = self._shape.variable
        named = pa.array(np.full(len(rows), kinds) if isinstance(kinds, str) else kinds, pa.string())
        columns = [pa.repeat(pa.scalar(batch, pa.int64()), len(rows)), named, packed(variable.key, rows)]
        columns += [] if variable.user_key is None else [packed(variable.user_key, rows)]
        value = self._shape.values(rows)
        columns.append(pc.if_else(pc.equal(named, DELETE), pa.scalar(None, value.type), value))
        yield self._shape.batch([*columns, pa.repeat(pa.scalar(self._slot, pa.int32()), len(rows))])


def _present(variable: Variable, rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(is_there(variable, rows)))


def _same(variable: Variable, before: pa.Table, after: pa.Table) -> np.ndarray:
    """Per entry, whether it is the same value, with the same end."""
    names = [*variable.value.columns, *filter(None, (variable.null_mark, variable.ttl))]
    if not len(before) or not names:
        return np.ones(len(before), bool)
    ours, theirs = ([one_array(rows.column(name)) for name in names] for rows in (before, after))
    return columns_equal(ours, theirs)


def _one_per_key(variable: Variable, rows: pa.Table) -> pa.Table:
    order, first = by_key(variable, rows)
    return rows.take(pa.array(order[first]))


def _without(variable: Variable, rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows of keys that none of the others has."""
    if not len(rows) or not len(others):
        return rows
    both = pa.concat_tables([others, rows])
    order, first = by_key(variable, both)
    of = np.empty(len(both), np.int64)
    of[order] = np.cumsum(first) - 1
    return rows.filter(pa.array(~np.isin(of[len(others) :], of[: len(others)])))
