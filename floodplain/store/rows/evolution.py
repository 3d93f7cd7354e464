"""Schema evolution: a table's definition changes while its old runs stay as they are.

A new version is made by matching columns, and fields of structs inside them, by name; what is found keeps its id, so old runs
are read under it without rewriting. Everything that could change the meaning of rows already written is refused, before anything
is written.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.keys import columns_equal
from floodplain.store.rows import layout, merge_functions
from floodplain.store.rows.layout import EXPIRES, HASH, MERGE, OP
from floodplain.store.rows.reshape import reshaped
from floodplain.store.rows.resolve import default_array
from floodplain.store.rows.widening import evolved, part_of, problems, replacements
from floodplain.versions.records.schema import Field, TableSchema, fields_named, same_definition, value_from_bytes


def evolve(
    old: TableSchema, wanted: TableSchema, renames: Mapping[str, str] | None = None, replaced: Collection[str] = ()
) -> TableSchema:
    """The version after ``old`` with the columns of ``wanted``; ``old`` itself if nothing changes.

    ``renames`` maps old names to new ones. ``replaced``: value columns that begin anew, as if they had just been added, because
    all rows are written anew. Raises ``SchemaMismatch`` naming the column, or the path of a field inside it, if the change is not
    one of: add, drop, rename, reorder or widen a value column; add, drop, reorder or widen a field of a struct inside one; rename
    a key column, or change its type so that keys and their hashes stay the same; change a time to live.
    """
    renames = dict(renames or {})
    _check_renames(old, wanted, renames)
    known = {renames.get(field.name, field.name): field for field in old.fields}
    if wanted.shape != old.shape:
        raise SchemaMismatch(f"table {old.table} is of shape {old.shape} and cannot become {wanted.shape}: create another table")
    next_field, told_apart = old.next_field, {field.id for field in (*old.keys, *old.subkeys)}
    values = []
    for field in wanted.values:
        before = None if field.name in replaced else known.get(field.name)
        if before is not None and before.id in told_apart:
            raise SchemaMismatch(f"table {old.table}: column {field.name} is a key and cannot become a value")
        if before is None:
            values.append(msgspec.structs.replace(field, id=next_field))
            next_field += 1
        else:
            values.append(_evolved_value(old, before, field))
    new = TableSchema(
        table=old.table,
        id=old.id + 1,
        shape=old.shape,
        keys=_same_keys(old, "key", old.keys, wanted.keys, known),
        subkeys=_same_keys(old, "sub-key", old.subkeys, wanted.subkeys, known),
        values=tuple(values),
        next_field=next_field,
        ttl_clock=_evolved_clock(old, wanted),
        ttl_ms=wanted.ttl_ms
        if replaced
        else _evolved_ttl(old, "rows", old.ttl_ms, wanted.ttl_ms, any(field.merge for field in old.values)),
    )
    return old if same_definition(old, new) else new


def _check_renames(old: TableSchema, wanted: TableSchema, renames: Mapping[str, str]) -> None:
    """A rename that misses would drop a column, or leave open which of two is meant."""
    fields_named(old, renames)
    names_now = {field.name for field in wanted.fields}
    for before, now in renames.items():
        if now not in names_now:
            raise SchemaMismatch(f"table {old.table}: column {before} is to be renamed to {now}, which the new definition lacks")
    names = Counter(renames.get(field.name, field.name) for field in old.fields)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise SchemaMismatch(f"table {old.table}: with these renames two columns are called {twice}: drop one of them first")


def adapt(rows: pa.Table, old: TableSchema, new: TableSchema) -> pa.Table:
    """Physical rows written under ``old`` as rows of ``new``, a later version of the same table.

    The rows may lack keys and hashes: these do not change.
    """
    if old == new:
        return rows
    had = {field.id: field for field in old.fields}
    target = layout.physical(new)
    columns_by_name = dict(zip(rows.column_names, rows.columns, strict=True))
    columns = {name: columns_by_name[name] for name in target.names if name in columns_by_name}
    for field in new.fields:
        if (name := layout.column(field)) in columns and field.id in had:
            columns[name] = reshaped(columns[name], had[field.id], field)
    merging = layout.numbers(rows, OP) == MERGE
    for field in new.values:
        if field.id not in had:
            columns[layout.column(field)] = _added(field, merging)
        if field.ttl_ms and not (field.id in had and had[field.id].ttl_ms):
            columns[layout.expires_column(field)] = pa.nulls(len(rows), pa.int64())
    if new.ttl_ms and not old.ttl_ms:
        columns[EXPIRES] = pa.nulls(len(rows), pa.int64())
    left_out = {HASH, *map(layout.column, new.keys)}.difference(columns_by_name)
    fields = [field for field in target if field.name not in left_out]
    return pa.Table.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))


def _added(field: Field, merging: np.ndarray) -> pa.Array:
    """A column that the rows did not have: its default, but nothing in merge rows, which leave it alone."""
    if not field.default:
        return pa.nulls(len(merging), field.arrow)
    pool = pa.concat_arrays([default_array(field, 1), pa.nulls(1, field.arrow)])
    return pool.take(pa.array(merging.astype(np.int8)))


def _same_keys(
    old: TableSchema, what: str, before: tuple[Field, ...], wanted: tuple[Field, ...], known: Mapping[str, Field]
) -> tuple[Field, ...]:
    if len(before) != len(wanted):
        raise SchemaMismatch(
            f"table {old.table} has {len(before)} {what} columns and cannot have {len(wanted)}: create another table"
        )
    kept = []
    for field, now in zip(before, wanted, strict=True):
        if known.get(now.name) is not field:
            raise SchemaMismatch(
                f"table {old.table}: {what} column {field.name} cannot be replaced by {now.name}; rename it, or create a table"
            )
        kept.append(_evolved_key(old, what, field, now))
    return tuple(kept)


def _evolved_key(old: TableSchema, what: str, before: Field, wanted: Field) -> Field:
    if before.type == wanted.type:
        return msgspec.structs.replace(before, name=wanted.name)
    new = evolved(before, wanted)
    for problem in chain(problems(before, new, as_key=True), replacements(before, new)):
        raise SchemaMismatch(f"table {old.table}: {what} column {problem}")
    return new


def _evolved_value(old: TableSchema, before: Field, wanted: Field) -> Field:
    new = evolved(before, wanted)
    for problem in chain(problems(before, new), replacements(before, new)):
        raise SchemaMismatch(f"table {old.table}: column {problem}")
    if (
        before.merge
        and not merge_functions.is_builtin(before.merge)
        and part_of(before).parts
        and part_of(before) != part_of(new)
    ):
        raise SchemaMismatch(
            f"table {old.table}: column {before.name} is {before.arrow} and cannot become {wanted.arrow}: operands already "
            f"written were meant for {before.merge}, which folds the one, not the other; use another name for what is new"
        )
    if before.merge != wanted.merge and before.merge:
        raise SchemaMismatch(
            f"table {old.table}: column {before.name} folds with {before.merge!r}; operands already written cannot fold with "
            f"{wanted.merge or 'nothing'!r}; add a column of another name"
        )
    if not _same_default(before, new):
        raise SchemaMismatch(
            f"table {old.table}: column {before.name} has the default {_default(before)!r} and cannot have {_default(wanted)!r}: "
            "rows without a value of their own would change; add a column of another name"
        )
    ttl_ms = _evolved_ttl(old, f"column {before.name}", before.ttl_ms, wanted.ttl_ms, bool(before.merge))
    return msgspec.structs.replace(new, ttl_ms=ttl_ms)


def _same_default(before: Field, new: Field) -> bool:
    """Whether rows without a value of their own stay as they are, but for fields that a struct did not have."""
    if not (before.default and new.default):
        return before.default == new.default
    return bool(columns_equal([reshaped(default_array(before, 1), before, new)], [default_array(new, 1)])[0])


def _default(field: Field) -> Any:
    return value_from_bytes(field.default).as_py() if field.default else None


def _evolved_clock(old: TableSchema, wanted: TableSchema) -> str:
    if old.ttl_clock != wanted.ttl_clock and _expires(old) and _expires(wanted):
        raise SchemaMismatch(
            f"table {old.table} expires by {old.ttl_clock} and cannot expire by {wanted.ttl_clock}: "
            "ends already written are times of the other; create another table"
        )
    return wanted.ttl_clock


def _expires(schema: TableSchema) -> bool:
    return bool(schema.ttl_ms) or any(field.ttl_ms for field in schema.values)


def _evolved_ttl(old: TableSchema, what: str, before_ms: int, wanted_ms: int, merging: bool) -> int:
    if before_ms and not wanted_ms:
        raise SchemaMismatch(
            f"table {old.table}: {what} cannot lose the time to live: ended rows would come back; set a long one"
        )
    if before_ms and wanted_ms != before_ms and merging:
        raise SchemaMismatch(
            f"table {old.table}: {what} with merges cannot change the time to live: operands were written under it"
        )
    return wanted_ms


@lru_cache(maxsize=1024)
def can_read(old: TableSchema, new: TableSchema) -> bool:
    """Whether rows written under ``old`` can be read under ``new``: what ``evolve`` makes sure of."""
    keys = list(zip((*old.keys, *old.subkeys), (*new.keys, *new.subkeys), strict=False))
    had = {field.id: field for field in old.values}
    kept = [(had[field.id], field) for field in new.values if field.id in had]
    return (
        old.shape == new.shape
        and (len(old.keys), len(old.subkeys)) == (len(new.keys), len(new.subkeys))
        and all(before.id == now.id and not any(problems(before, now, as_key=True)) for before, now in keys)
        and not any(problem for before, now in kept for problem in problems(before, now))
        and bool(new.ttl_ms or not old.ttl_ms)
        and all(now.ttl_ms or not before.ttl_ms for before, now in kept)
    )
