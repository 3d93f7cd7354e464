"""The difference of a table between two epochs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.keys import columns_equal
from floodplain.store.read import scan
from floodplain.store.read.snapshot import epoch_rules
from floodplain.store.rows import layout
from floodplain.store.rows.evolution import adapt, can_read
from floodplain.store.rows.layout import HASH, SUB
from floodplain.store.rows.row_classes import refine, starts_of
from floodplain.store.rows.widening import fields_made_anew, made_anew, part_of
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.run.validation import membership
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.groups import from_members
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Change:
    """What differs in one piece of a table: physical rows in the schema of the newer epoch."""

    added: pa.Table
    before: pa.Table
    """The older rows of entries that differ, in the order of ``after``."""
    after: pa.Table
    deleted: pa.Table


def changes(
    older: Manifest,
    newer: Manifest,
    table: str,
    open_runs: OpenRuns,
    window_bytes: int,
    *,
    groups: GroupRanges | None = None,
    expiries: bool = False,
) -> Iterator[Change]:
    """Window by window, each side as its own epoch saw it. Key groups that cannot differ are not read.

    ``groups``: only these key groups. ``expiries``: an entry that only ends at another time than before is different, too.
    """
    schema, old_schema = newer.schema(table), older.schema(table)
    if schema is None:
        raise BadInput(f"there is no table {table!r} at epoch {newer.epoch}")
    if old_schema is not None and not (_same_table(older.schemas[table], newer.schemas[table]) and can_read(old_schema, schema)):
        raise BadInput(
            f"table {table!r} of epoch {newer.epoch} cannot be compared with that of epoch {older.epoch}: it was defined after "
            "going back to before that, or made anew, and cannot hold its rows"
        )
    if old_schema is not None:
        _check_columns(older, newer, old_schema, schema)
    differing = from_members(np.flatnonzero(_differs(older, newer, table) & _wanted(groups, newer.key_groups)).tolist())
    if not differing:
        return
    was = open_runs.sources(older, table, differing)
    now = open_runs.sources(newer, table, differing)
    for window in scan.plan([*was, *now], schema, differing, newer.key_groups, window_bytes):
        after = scan.resolved(window, now, schema, epoch_rules(newer, schema))
        before = after.slice(0, 0)
        if old_schema is not None:
            before = adapt(scan.resolved(window, was, old_schema, epoch_rules(older, old_schema)), old_schema, schema)
        yield _compare(before, after, schema, expiries)


def _same_table(old: Sequence[TableSchema], new: Sequence[TableSchema]) -> bool:
    """Whether an id means one column in both. Versions go on from one another, also behind an epoch that was restored, and then
    no id is given twice. Those of a table that was dropped and made anew begin again."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    if common == min(len(old), len(new)):
        return True
    next_field = old[common - 1].next_field if common else 0
    shared = {field.id for field in old[-1].fields} & {field.id for field in new[-1].fields}
    return all(id_ < next_field for id_ in shared)


def _check_columns(older: Manifest, newer: Manifest, old: TableSchema, new: TableSchema) -> None:
    """Of a column that was dropped and made anew, the old values are no values of the new one: they cannot be told as changes."""
    columns = {field.id: field for field in old.values}
    anew = [*made_anew(old.values, new.values)]
    for field in new.values:
        if field.id in columns:
            anew += [f"{field.name}.{path}" for path in fields_made_anew(part_of(columns[field.id]), part_of(field))]
    if anew:
        raise BadInput(
            f"table {new.table!r} of epoch {newer.epoch} cannot be compared with that of epoch {older.epoch}: "
            f"{', '.join(anew)} was dropped and made anew in between. Compare up to the last epoch before that and from "
            "the first after it, or read both epochs"
        )


def _differs(older: Manifest, newer: Manifest, table: str) -> np.ndarray:
    """Per key group, whether it is read from other runs, or under another schema, or holds rows that may have expired."""
    expiring = any(run.first_expiry_ms for run in newer.runs.get(table, ()))
    if expiring or older.schema(table) != newer.schema(table):
        return np.ones(newer.key_groups, bool)
    sets: list[list[set[str]]] = []
    for manifest in (older, newer):
        members: list[set[str]] = [set() for _ in range(newer.key_groups)]
        for run in manifest.runs.get(table, ()):
            for group in np.flatnonzero(membership(run, newer.key_groups)):
                members[group].add(run.id)
        sets.append(members)
    return np.array([a != b for a, b in zip(*sets, strict=True)])


def _wanted(groups: GroupRanges | None, key_groups: int) -> np.ndarray:
    """Per key group, whether it is among these; all are if none are given."""
    wanted = np.full(key_groups, groups is None)
    for low, high in groups or ():
        wanted[low:high] = True
    return wanted


def _compare(before: pa.Table, after: pa.Table, schema: TableSchema, expiries: bool) -> Change:
    rows = pa.concat_tables([before, after]).combine_chunks()
    is_new = np.arange(len(rows)) >= len(before)
    hashes = layout.numbers(rows, HASH)
    sub = layout.numbers(rows, SUB) if schema.shape != "value" else np.zeros(len(rows), np.uint64)
    order = np.lexsort((is_new, sub, hashes))
    rows, is_new = rows.take(pa.array(order)), is_new[order]
    told_apart = layout.column_arrays(rows, (*schema.keys, *layout.stored_subkeys(schema)))
    entry = refine(starts_of(hashes[order], sub[order]), told_apart)
    order = np.argsort(entry, kind="stable")
    rows, is_new, entry = rows.take(pa.array(order)), is_new[order], entry[order]
    first = starts_of(entry)
    alone = first & np.append(first[1:], True)
    left = np.flatnonzero(first & ~alone)
    same = np.ones(len(left), bool)
    values = layout.column_arrays(rows, schema.values)
    values += [layout.one_array(rows.column(name)) for name in layout.expiry_columns(schema)] if expiries else []
    if len(left) and values:
        same = columns_equal([v.take(pa.array(left)) for v in values], [v.take(pa.array(left + 1)) for v in values])
    return Change(
        added=rows.filter(pa.array(alone & is_new)),
        before=rows.take(pa.array(left[~same])),
        after=rows.take(pa.array(left[~same] + 1)),
        deleted=rows.filter(pa.array(alone & ~is_new)),
    )
