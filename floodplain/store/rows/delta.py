"""The delta of an epoch, its memtable: rows checked against the schema, turned into physical rows and sorted."""

from itertools import pairwise

import numpy as np
import pyarrow as pa

from floodplain import lossless
from floodplain.errors import SchemaMismatch, UserError
from floodplain.keys import hash_columns, key_group, normalize_keys
from floodplain.store.rows import large_tables, layout
from floodplain.store.rows.arrow_validation import validate
from floodplain.store.rows.layout import CLEAR, EXPIRES, HASH, MERGE, OP, OPS, PUT, SUB
from floodplain.store.rows.resolve import Rules, default_array, resolve
from floodplain.store.rows.row_classes import hash_order, refine, starts_of
from floodplain.versions.records.schema import Field, TableSchema

EXPIRES_OF = "_expires_"
"""``_expires_<column>``: lets a caller that rewrites a row keep the end of a value it did not touch."""


def physical_rows(schema: TableSchema, rows: pa.Table | pa.RecordBatch, op: str, now_ms: int | None) -> pa.Table:
    """``rows`` as physical rows with this op. Raises ``SchemaMismatch`` that names the column, before anything is written.

    Columns are found by name. Keys are needed always, sub-keys unless the op is ``clear``; a value column that a put omits
    gets its default, one that a merge omits is untouched. A column ``_hash`` is believed. Rows that do not say when they
    end do so a time to live after ``now_ms``; never, if there is no such time yet.
    """
    if op not in OPS:
        raise SchemaMismatch(f"table {schema.table}: unknown op {op!r}; use one of {', '.join(OPS)}")
    rows = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    _check_names(schema, rows, op)
    keys = normalize_keys([cast_column(schema, rows, field) for field in schema.keys])
    columns: dict[str, pa.Array] = {HASH: hashes_of(schema.table, rows, keys)}
    if schema.shape != "value":
        columns.update(_sub_columns(schema, rows, op))
    columns[OP] = pa.repeat(pa.scalar(OPS[op], pa.uint8()), len(rows))
    columns.update({layout.column(field): array for field, array in zip(schema.keys, keys, strict=True)})
    columns.update(_value_columns(schema, rows, OPS[op], now_ms))
    target = layout.physical(schema)
    return pa.Table.from_arrays([columns[name] for name in target.names], schema=target)


def sort_rows(schema: TableSchema, rows: pa.Table, key_groups: int) -> pa.Table:
    """Rows in the order that runs keep; rows that compare equal stay in place."""
    order = _run_order(schema, rows, key_groups)
    return rows if order is None else large_tables.take(rows, order)


def settle(schema: TableSchema, parts: list[pa.Table], now_ms: int | None, key_groups: int) -> pa.Table:
    """One delta from parts in the order they were handed over: a later row of an entry counts over an earlier one.

    What the epoch below may need stays: deletes, clears, and merges that found no put in this delta.
    """
    rows = pa.concat_tables(parts)
    if rows.nbytes <= large_tables.MOST_BYTES:
        rows = rows.combine_chunks()
    if schema.shape != "time" and not (layout.numbers(rows, OP) == CLEAR).any():
        order = _run_order(schema, rows, key_groups)
        told_apart = [layout.numbers(rows, name) for name in ((HASH,) if schema.shape == "value" else (HASH, SUB))]
        if order is not None:
            told_apart = [column[order] for column in told_apart]
        if starts_of(*told_apart).all():
            return rows if order is None else large_tables.take(rows, order)
    return _settle_repeats(schema, rows, now_ms, key_groups)


def unmergeable(schema: TableSchema, parts: list[pa.Table], now_ms: int | None, key_groups: int) -> dict[str, object]:
    """A key whose rows a user's merge cannot take. Requires: ``settle`` of these raised ``UserError``."""
    rows = pa.concat_tables(parts).combine_chunks()
    while len(hashes := np.unique(layout.numbers(rows, HASH))) > 1:
        first = rows.filter(pa.array(layout.numbers(rows, HASH) < hashes[len(hashes) // 2]))
        try:
            settle(schema, [first], now_ms, key_groups)
            rows = rows.filter(pa.array(layout.numbers(rows, HASH) >= hashes[len(hashes) // 2]))
        except UserError:
            rows = first
    return {field.name: rows.column(layout.column(field))[0].as_py() for field in schema.keys}


def _settle_repeats(schema: TableSchema, rows: pa.Table, now_ms: int | None, key_groups: int) -> pa.Table:
    order = hash_order(layout.numbers(rows, HASH))
    rules = Rules(layout.BEGINNING if now_ms is None else now_ms - 1, keep_unfolded=True)
    settled = []
    for start, stop in _portions(rows, order):
        part = large_tables.take(rows, order[start:stop])
        owner = refine(starts_of(layout.numbers(part, HASH)), layout.column_arrays(part, schema.keys))
        settled.append(resolve(part, owner, order[start:stop], schema, rules, np.zeros(len(part), bool))[0])
    return sort_rows(schema, settled[0] if len(settled) == 1 else pa.concat_tables(settled), key_groups)


def _portions(rows: pa.Table, order: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of the order, each of whole hashes, whose rows fit in one Arrow array. Nearly always it is one."""
    count = -(-rows.nbytes // large_tables.MOST_BYTES)
    if count <= 1:
        return [(0, len(order))]
    hashes = layout.numbers(rows, HASH)[order]
    cuts = np.searchsorted(hashes, hashes[np.arange(2 * count) * len(hashes) // (2 * count)])
    return list(pairwise([*np.unique(cuts).tolist(), len(order)]))


def _run_order(schema: TableSchema, rows: pa.Table, key_groups: int) -> np.ndarray | None:
    """The order that runs keep; None if the rows have it already."""
    if schema.shape == "value" and _ascends(rows.column(HASH)):
        return None
    hashes = layout.numbers(rows, HASH)
    if schema.shape == "value":
        return hash_order(hashes)
    if schema.shape == "time":
        by = [hashes, layout.numbers(rows, SUB), layout.clears_first(rows), key_group(hashes, key_groups)]
    else:
        by = [layout.numbers(rows, SUB), hashes]
    order = np.lexsort(by)
    return order if (order[1:] < order[:-1]).any() else None


def _ascends(hashes: pa.ChunkedArray) -> bool:
    """Compares chunk by chunk: concatenating them costs more."""
    before = None
    for chunk in filter(len, hashes.chunks):
        numbers = chunk.to_numpy()
        if (numbers[1:] < numbers[:-1]).any() or (before is not None and numbers[0] < before):
            return False
        before = numbers[-1]
    return True


def _check_names(schema: TableSchema, rows: pa.Table, op: str) -> None:
    names = rows.column_names
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"table {schema.table}: a column is given twice among {', '.join(names)}")
    known = {field.name for field in schema.fields}
    allowed = known | {HASH, EXPIRES} | {EXPIRES_OF + field.name for field in schema.values if field.ttl_ms}
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise SchemaMismatch(f"table {schema.table} has no column {unknown[0]!r}; it has {', '.join(sorted(known))}")
    needed = schema.keys if op == "clear" else schema.keys + schema.subkeys
    present = frozenset(names)
    missing = [field.name for field in needed if field.name not in present]
    if missing:
        raise SchemaMismatch(f"table {schema.table}: column {missing[0]!r} tells its rows apart and is missing")
    if op == "merge":
        fixed = [field.name for field in schema.values if field.name in present and not field.merge]
        if fixed:
            raise SchemaMismatch(f"table {schema.table}: column {fixed[0]!r} has no merge; put it, or declare one")


def cast_column(schema: TableSchema, rows: pa.Table, field: Field) -> pa.Array:
    """The column of this field, of its type and sound: what readers refuse must not be written."""
    return _cast(schema.table, rows, field.name, field.arrow)


def _cast(table: str, rows: pa.Table, name: str, type_: pa.DataType) -> pa.Array:
    column = layout.one_array(rows.column(name))
    try:
        array = column if column.type == type_ else layout.one_array(lossless.cast(column, type_))
        validate(array)
    except (pa.ArrowException, lossless.Lossy) as error:
        reason = str(error).partition("\n")[0]
        raise SchemaMismatch(f"table {table}: column {name} is {type_}, and {column.type} was given: {reason}") from error
    return array


def hashes_of(table: str, rows: pa.Table, keys: list[pa.Array]) -> pa.Array:
    """The hash of each row's key; a column ``_hash`` is believed."""
    if HASH in rows.column_names:
        signed = rows.schema.field(HASH).type == pa.int64()
        hashes = _cast(table, rows, HASH, pa.int64() if signed else pa.uint64())
        if hashes.null_count:
            raise SchemaMismatch(f"table {table}: column {HASH} has nulls: omit it, or give every row's hash")
        return hashes.view(pa.uint64())
    return pa.array(hash_columns(keys))


def _sub_columns(schema: TableSchema, rows: pa.Table, op: str) -> dict[str, pa.Array]:
    stored = layout.stored_subkeys(schema)
    if op == "clear":
        empty = {layout.column(field): pa.nulls(len(rows), field.arrow) for field in stored}
        return {SUB: pa.array(np.zeros(len(rows), np.uint64)), **empty}
    if schema.shape == "hashed":
        subkeys = normalize_keys([cast_column(schema, rows, field) for field in stored])
        named = {layout.column(field): array for field, array in zip(stored, subkeys, strict=True)}
        return {SUB: pa.array(hash_columns(subkeys)), **named}
    (field,) = schema.subkeys
    return {SUB: pa.array(layout.sub_from_integers(cast_column(schema, rows, field), field, schema.table))}


def _value_columns(schema: TableSchema, rows: pa.Table, op: int, now_ms: int | None) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    valued = op in (PUT, MERGE)
    present = frozenset(rows.column_names) if valued else frozenset()
    for field in schema.values:
        if field.name in present:
            columns[layout.column(field)] = cast_column(schema, rows, field)
        else:
            columns[layout.column(field)] = default_array(field, len(rows)) if op == PUT else pa.nulls(len(rows), field.arrow)
    ending = [(layout.expires_column(field), EXPIRES_OF + field.name, field.ttl_ms) for field in schema.values if field.ttl_ms]
    ending += [(EXPIRES, EXPIRES, schema.ttl_ms)] if schema.ttl_ms else []
    for column, name, ttl_ms in ending:
        otherwise_ms = now_ms + ttl_ms if valued and now_ms is not None else None
        ends = pa.repeat(pa.scalar(otherwise_ms, pa.int64()), len(rows))
        columns[column] = _cast(schema.table, rows, name, pa.int64()) if name in present else ends
    return columns
