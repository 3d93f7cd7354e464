"""The rules by which many rows of an entry become one: each op over each op, time to live, and what compaction may drop."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.store.compaction.compactor import compact
from floodplain.store.compaction.policy import Proposal
from floodplain.store.rows import layout
from floodplain.store.rows.definition import Column, map_table, value_table
from floodplain.store.rows.resolve import Rules, _in_order, resolve
from floodplain.versions.records.schema import TableSchema
from tests.store import forge

SUM = value_table("t", {"k": pa.int64()}, {"n": Column(pa.int64(), merge="sum", default=100), "x": Column(pa.int64(), default=5)})
MAP = map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"n": Column(pa.int64(), merge="sum")})
BEFORE_ALL = -(10**6)
OPS = layout.OPS
NAMES = {number: name for name, number in OPS.items()}

Row = tuple[str, int | None, int | None]
"""(op, n, x)"""


def value_rows(rows: list[Row], schema: TableSchema = SUM, ends: list[int | None] | None = None) -> pa.Table:
    """Physical rows of one key, newest first."""
    columns: dict[str, Any] = {"_hash": [1] * len(rows), "_op": [OPS[op] for op, _, _ in rows]}
    if ends is not None:
        columns["_expires"] = ends
    columns |= {"f1": [7] * len(rows), "f2": [n for _, n, _ in rows], "f3": [x for _, _, x in rows]}
    return pa.table(columns, schema=layout.physical(schema))


def resolved(rows: pa.Table, schema: TableSchema, now_ms: int = BEFORE_ALL, *, bottom: bool = True) -> list[dict[str, Any]]:
    """Resolve rows of one key, the first being the newest."""
    ranks = -np.arange(len(rows))
    found, owner = resolve(rows, np.zeros(len(rows), np.int64), ranks, schema, Rules(now_ms), np.full(len(rows), bottom))
    assert len(found) == len(owner)
    return [{**row, "op": NAMES[row["_op"]]} for row in found.to_pylist()]


def short(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["op"], row["f2"], row["f3"]) for row in rows]


PUT, MERGE, DELETE, CLEAR = ("put", 10, 1), ("merge", 3, None), ("delete", None, None), ("clear", None, None)
ONE = [
    ([PUT], [("put", 10, 1)], [("put", 10, 1)]),
    ([MERGE], [("put", 103, 5)], [("merge", 3, None)]),
    ([DELETE], [], [("delete", None, None)]),
    ([CLEAR], [], [("clear", None, None)]),
]
TWO = [
    ([PUT, PUT], [("put", 10, 1)], [("put", 10, 1)]),
    ([PUT, DELETE], [("put", 10, 1)], [("put", 10, 1)]),
    ([PUT, MERGE], [("put", 10, 1)], [("put", 10, 1)]),
    ([PUT, CLEAR], [("put", 10, 1)], [("clear", None, None), ("put", 10, 1)]),
    ([MERGE, PUT], [("put", 13, 1)], [("put", 13, 1)]),
    ([MERGE, MERGE], [("put", 106, 5)], [("merge", 6, None)]),
    ([MERGE, DELETE], [("put", 103, 5)], [("put", 103, 5)]),
    ([MERGE, CLEAR], [("put", 103, 5)], [("clear", None, None), ("put", 103, 5)]),
    ([DELETE, PUT], [], [("delete", None, None)]),
    ([DELETE, MERGE], [], [("delete", None, None)]),
    ([DELETE, DELETE], [], [("delete", None, None)]),
    ([DELETE, CLEAR], [], [("clear", None, None)]),
    ([CLEAR, PUT], [], [("clear", None, None)]),
    ([CLEAR, MERGE], [], [("clear", None, None)]),
    ([CLEAR, DELETE], [], [("clear", None, None)]),
    ([CLEAR, CLEAR], [], [("clear", None, None)]),
]
THREE = [
    ([MERGE, MERGE, PUT], [("put", 16, 1)], [("put", 16, 1)]),
    ([MERGE, PUT, MERGE], [("put", 13, 1)], [("put", 13, 1)]),
    ([MERGE, DELETE, PUT], [("put", 103, 5)], [("put", 103, 5)]),
    ([MERGE, CLEAR, PUT], [("put", 103, 5)], [("clear", None, None), ("put", 103, 5)]),
    ([("merge", None, None), MERGE, PUT], [("put", 13, 1)], [("put", 13, 1)]),
    ([("merge", None, None)], [("put", 100, 5)], [("merge", None, None)]),
    ([MERGE, ("put", None, None)], [("put", 3, None)], [("put", 3, None)]),
]


@pytest.mark.parametrize(("rows", "at_bottom", "above"), [*ONE, *TWO, *THREE], ids=lambda case: "-".join(row[0] for row in case))
def test_ops_over_ops(rows: list[Row], at_bottom: list[Row], above: list[Row]) -> None:
    """Newest first. At the bottom nothing older exists; above it, what an older row would need to see stays."""
    assert short(resolved(value_rows(rows), SUM)) == at_bottom
    assert short(resolved(value_rows(rows), SUM, bottom=False)) == above


def test_every_pair_is_in_the_table() -> None:
    """So that the table above has every rule."""
    names = {tuple(row[0] for row in rows) for rows, _, _ in TWO}
    assert names == set(itertools.product(OPS, repeat=2))


def test_any_grouping_of_runs_gives_the_same() -> None:
    """Compacting neighbours first, then all, ends where resolving all at once does."""
    for rows in itertools.product((PUT, MERGE, DELETE), repeat=4):
        whole = short(resolved(value_rows([*rows]), SUM))
        for cut in (1, 2, 3):
            newer = resolved(value_rows([*rows[:cut]]), SUM, bottom=False)
            older = resolved(value_rows([*rows[cut:]]), SUM, bottom=False)
            assert short(resolved(value_rows([*short(newer), *short(older)]), SUM)) == whole, (rows, cut)


TTL = value_table("t", {"k": pa.int64()}, {"n": Column(pa.int64(), merge="sum"), "x": pa.int64()}, ttl_ms=100)


def test_rows_end_at_their_time_and_not_before() -> None:
    for now, left in ((99, 1), (100, 0), (101, 0)):
        assert len(resolved(value_rows([PUT], TTL, [100]), TTL, now)) == left


def test_above_the_bottom_an_ended_row_is_a_delete() -> None:
    """Dropped, an older value would come back to life."""
    assert [row["op"] for row in resolved(value_rows([PUT], TTL, [100]), TTL, 100, bottom=False)] == ["delete"]
    assert [row["op"] for row in resolved(value_rows([MERGE], TTL, [100]), TTL, 100, bottom=False)] == ["delete"]
    assert resolved(value_rows([PUT, ("put", 9, 9)], TTL, [100, 500]), TTL, 200) == []


@pytest.mark.parametrize(("put_ends", "expected"), [(150, 13), (100, 3), (99, 3), (101, 13)])
def test_below_a_merge_a_row_ends_by_the_time_of_the_merge(put_ends: int, expected: int) -> None:
    """The merge was written at 100 and ends at 200: what had ended by then is not added to, whenever that is read."""
    for now in (0, 120, 199):
        assert [row["f2"] for row in resolved(value_rows([MERGE, PUT], TTL, [200, put_ends]), TTL, now)] == [expected]
    assert resolved(value_rows([MERGE, PUT], TTL, [200, put_ends]), TTL, 200) == []


def test_a_folded_row_lives_as_long_as_its_newest_part() -> None:
    (row,) = resolved(value_rows([MERGE, PUT], TTL, [200, 150]), TTL, 120)
    assert row["_expires"] == 200


def test_a_row_without_an_end_never_ends() -> None:
    """Written before the table had a time to live."""
    assert len(resolved(value_rows([PUT], TTL, [None]), TTL, 10**15)) == 1


def test_a_clear_hides_older_sub_keys_and_no_newer_ones() -> None:
    store = forge.with_table(MAP)
    forge.write(store, "t", ("put", {"k": [1, 1, 2], "s": [1, 2, 1], "n": [1, 2, 3]}))
    forge.write(store, "t", ("clear", {"k": [1]}), ("put", {"k": [1], "s": [3], "n": [9]}))
    forge.write(store, "t", ("merge", {"k": [1, 1], "s": [1, 3], "n": [5, 5]}))
    expected = [{"k": 1, "s": 1, "n": 5}, {"k": 1, "s": 3, "n": 14}, {"k": 2, "s": 1, "n": 3}]

    def content() -> list[dict[str, Any]]:
        return sorted(forge.rows(store, "t"), key=lambda row: (row["k"], row["s"]))

    assert content() == expected
    asked = pa.table({"k": [1, 1, 1], "s": [1, 2, 3]})
    assert store.snapshot().table("t").multi_get(asked).rows["n"].to_pylist() == [5, 14]
    list(store.compact(full=True))
    assert content() == expected


def test_within_one_delta_the_later_row_counts() -> None:
    store = forge.with_table(MAP)
    both = {"k": [1, 1], "s": [1, 2], "n": [1, 2]}
    forge.write(store, "t", ("put", both), ("clear", {"k": [1]}), ("put", {"k": [1], "s": [2], "n": [7]}))
    assert forge.rows(store, "t") == [{"k": 1, "s": 2, "n": 7}]
    forge.write(store, "t", ("merge", {"k": [1, 1, 1], "s": [2, 2, 2], "n": [1, 1, 1]}), ("delete", {"k": [1], "s": [2]}))
    assert forge.rows(store, "t") == []
    forge.write(store, "t", ("delete", {"k": [1], "s": [2]}), ("merge", {"k": [1], "s": [2], "n": [4]}))
    assert forge.rows(store, "t") == [{"k": 1, "s": 2, "n": 4}]


def test_a_partial_compaction_keeps_what_older_runs_need_to_see() -> None:
    """Deletes and merges of the newer runs, compacted without the oldest one."""
    store = forge.with_table(SUM)
    forge.write(store, "t", ("put", {"k": [1, 2, 3], "n": [1, 2, 3]}))
    for _ in range(4):
        forge.write(store, "t", ("merge", {"k": [2], "n": [10]}), ("delete", {"k": [1]}))
    manifest = store.head

    newer = manifest.runs["t"][:4]
    compact(store.history, store.open_runs, Proposal("t", ((0, forge.GROUPS),), newer, 0), manifest)
    assert len(store.head.runs["t"]) == 2
    assert store.head.runs["t"][0].deletes
    assert store.head.runs["t"][0].merges
    assert sorted((row["k"], row["n"]) for row in forge.rows(store, "t")) == [(2, 42), (3, 3)]


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_rows_are_left_as_they_stand_only_if_they_are_in_order(rows: int) -> None:
    """All arrangements of a few rows: by owner, then sub-key, then the newest first."""
    few = list(itertools.product(range(2), repeat=3))
    for standing in itertools.product(few, repeat=rows):
        owner, sub, newest = (np.array([row[at] for row in standing], np.int64) for at in range(3))
        ordered = sorted(standing, key=lambda row: (row[0], row[1], -row[2]))
        assert _in_order(owner, sub.astype(np.uint64), newest) == (list(standing) == ordered), standing
