"""The four kinds of state: their batches of changes, their lookup keys, and the expected state in the end.

Every contender gets the same Arrow batches, as a micro-batch arrives from Spark. A batch has each user once. DuckDB computes
the expected state from all batches at once, with no code of any contender.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PAGES = 8
TAGS = ("new", "gold", "trial", "staff", "beta")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of state."""

    name: str
    batch: Callable[[np.ndarray, int, np.random.Generator], pa.Table]
    """Changes for these users, as batch number n."""
    keys: tuple[str, ...]
    """The key columns of a lookup."""
    oracle: str
    """SQL that turns the table ``changes`` (all batches, numbered by ``batch``) into the state."""


def users(ids: np.ndarray) -> pa.Array:
    """``user-000000042`` for 42."""
    return pc.binary_join_element_wise("user-", pc.utf8_lpad(pa.array(ids).cast(pa.string()), 9, "0"), "")


def pages(numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise("page-", pa.array(numbers).cast(pa.string()), "")


def value_batch(ids: np.ndarray, number: int, rng: np.random.Generator) -> pa.Table:  # noqa: ARG001
    """Add to a count and a sum. Sums are of whole numbers, so that they do not depend on the order of adding."""
    count = rng.integers(1, 10, len(ids))
    return pa.table({"user": users(ids), "n": count, "s": rng.integers(0, 1000, len(ids)).astype(np.float64)})


def _list_batch(ids: np.ndarray, number: int, rng: np.random.Generator) -> pa.Table:  # noqa: ARG001
    """Append one to three items."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 4, len(ids)))])
    items = pa.array(rng.integers(0, 1_000_000, offsets[-1]))
    return pa.table({"user": users(ids), "items": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)})


def _map_batch(ids: np.ndarray, number: int, rng: np.random.Generator) -> pa.Table:  # noqa: ARG001
    """Set two entries."""
    first = rng.integers(0, PAGES, len(ids))
    second = (first + rng.integers(1, PAGES, len(ids))) % PAGES
    page = pages(np.column_stack([first, second]).ravel())
    return pa.table({"user": users(np.repeat(ids, 2)), "page": page, "seen": rng.integers(0, 1_000_000, 2 * len(ids))})


def _nested_batch(ids: np.ndarray, number: int, rng: np.random.Generator) -> pa.Table:
    """Count a visit, set the last page with its time, replace the tags."""
    picks = pa.array(rng.integers(0, len(TAGS), 2 * len(ids)))
    tags = pa.ListArray.from_arrays(pa.array(np.arange(len(ids) + 1) * 2, pa.int32()), pa.array(TAGS).take(picks))
    at = number * 1_000_000 + rng.integers(0, 1_000_000, len(ids))
    return pa.table({"user": users(ids), "page": pages(rng.integers(0, PAGES, len(ids))), "at": at, "tags": tags})


VALUE = Kind("value", value_batch, ("user",), "select user, sum(n)::bigint as n, sum(s)::double as s from changes group by user")
LIST = Kind(
    "list", _list_batch, ("user",), "select user, flatten(list(items order by batch)) as items from changes group by user"
)
MAP = Kind(
    "map", _map_batch, ("user", "page"), "select user, page, arg_max(seen, batch) as seen from changes group by user, page"
)
NESTED = Kind(
    "nested",
    _nested_batch,
    ("user",),
    "select user, {'visits': count(*)::bigint, 'last': arg_max({'page': page, 'at': \"at\"}, batch), "
    "'tags': arg_max(tags, batch)} as profile from changes group by user",
)
KINDS = (VALUE, LIST, MAP, NESTED)


def expected(kind: Kind, batches: Sequence[pa.Table]) -> pa.Table:
    """The state after ``batches``, as DuckDB computes it."""
    numbered = [batch.append_column("batch", pa.array(np.full(len(batch), number))) for number, batch in enumerate(batches)]
    changes = pa.concat_tables(numbered)
    with duckdb.connect() as connection:
        connection.register("changes", changes)
        return connection.sql(kind.oracle).to_arrow_table()


def same_rows(kind: Kind, actual: pa.Table, wanted: pa.Table) -> bool:
    """Whether two tables of this kind's state have the same rows, in any order."""
    if actual.column_names != wanted.column_names or len(actual) != len(wanted):
        return False
    return _ordered(kind, actual).equals(_ordered(kind, wanted.cast(actual.schema)))


def _ordered(kind: Kind, rows: pa.Table) -> pa.Table:
    order = pc.sort_indices(rows.select(kind.keys), sort_keys=[(name, "ascending") for name in kind.keys])
    return rows.take(order).combine_chunks()
