"""The value of one key: the fast path of ``TableView.get``, where the newest row of a key is its value."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.keys import hash_one, key_group_of
from floodplain.store.rows import layout
from floodplain.store.rows.layout import OP, PUT
from floodplain.store.run.lookup_keys import Source
from floodplain.store.run.point_index import PointIndex
from floodplain.versions.records.schema import TableSchema

UNSETTLED: Mapping[str, Any] = {}
"""The fast path does not tell: a multi-get does."""


class PointGet:
    """The runs of a table, prepared for single keys. Newest first: the first run that has the key settles it."""

    def __init__(self, schema: TableSchema, sources: Sequence[Source], key_groups: int) -> None:
        """Requires: ``applies``."""
        names = layout.physical(schema).names
        self._types = [field.arrow for field in schema.keys]
        self._keys = [names.index(layout.column(field)) for field in schema.keys]
        self._values = [(field.name, names.index(layout.column(field))) for field in schema.values]
        self._op, self._key_groups = names.index(OP), key_groups
        self._runs = [(PointIndex(source.reader), source.member, source.reader.ref.deletes) for source in sources]

    def get(self, key: Sequence[object]) -> Mapping[str, Any] | None:
        """The values, None if there is no such key, or ``UNSETTLED``."""
        hash_ = hash_one(key, self._types)
        if hash_ is None:
            return UNSETTLED
        group = key_group_of(hash_, self._key_groups)
        for index, member, deletes in self._runs:
            at = index.find(hash_) if member[group] else None
            if at is None:
                continue
            columns, row = at
            if any(columns[place][row].as_py() != value for place, value in zip(self._keys, key, strict=True)):
                return UNSETTLED
            if deletes and columns[self._op][row].as_py() != PUT:
                return None
            return {name: columns[place][row].as_py() for name, place in self._values}
        return None


def applies(schema: TableSchema, sources: Sequence[Source]) -> bool:
    """Whether the newest row of each key settles it, and is at hand: rows that fold, expire or are of an older schema, sub-keys,
    keys that share a hash, and runs that must be fetched take the way of a multi-get."""
    if schema.shape != "value" or schema.ttl_ms or any(field.ttl_ms for field in schema.values):
        return False
    return all(
        source.reader.mapped and source.reader.unique and not source.reader.ref.merges and source.schema == schema
        for source in sources
    )


def key_table(schema: TableSchema, key: Sequence[object]) -> pa.Table:
    """One row with this key, and the sub-keys after it. Raises ``SchemaMismatch``."""
    fields = (*schema.keys, *schema.subkeys)
    if len(key) != len(fields):
        wanted = ", ".join(field.name for field in fields)
        raise SchemaMismatch(
            f"table {schema.table}: {len(key)} values are no key: pass one for each of {wanted}, or use multi_get"
        )
    try:
        return pa.table({field.name: pa.array([value], field.arrow) for field, value in zip(fields, key, strict=True)})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatch(f"table {schema.table}: {key!r} is not a key of it: {error}") from error
