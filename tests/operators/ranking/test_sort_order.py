"""Orders of rows: every type, both directions, nulls on either side."""

import datetime
import decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from floodplain.operators.ranking.sort_order import By, argsort, codes, leaders, parse_order, ranked

D = decimal.Decimal
COLUMNS = [
    pa.array([3, None, -5, 3, -(1 << 63), (1 << 63) - 1], pa.int64()),
    pa.array([3, None, 5, 0, 1 << 63, (1 << 64) - 1], pa.uint64()),
    pa.array([1, None, -128, 127], pa.int8()),
    pa.array([1.5, None, float("nan"), -0.0, 0.0, float("inf"), float("-inf"), -1e-300, 5e-324], pa.float64()),
    pa.array([1.5, None, float("nan"), -2.5], pa.float32()),
    pa.array(["b", None, "", "é", "z", "aa"], pa.string()),
    pa.array([b"b", None, b"", b"\xff"], pa.binary()),
    pa.array([True, None, False]),
    pa.array([D("1.50"), None, D("-7.25"), D("1.51")], pa.decimal128(10, 2)),
    pa.array([datetime.date(2020, 1, 1), None, datetime.date(1960, 1, 1)], pa.date32()),
    pa.array([5, None, -5], pa.timestamp("us", "UTC")),
    pa.array(["b", None, "a", "b"]).dictionary_encode(),
]


def key(value, by):
    if value is None:
        return (0 if by.nulls_first else 2,)
    place = (1, 0) if value != value else (0, value)
    return 1, place


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
def test_codes_are_in_the_order_of_the_values(column, descending, nulls_first):
    values = column.to_pylist()
    by = By("x", descending, nulls_first)
    found = [values[at] for at in np.lexsort(codes(column, by)[::-1])]
    there = sorted((v for v in values if v is not None), key=lambda v: key(v, by)[1], reverse=descending)
    nulls = [v for v in values if v is None]
    expected = nulls + there if nulls_first else there + nulls
    assert [repr(v + 0.0) if isinstance(v, float) else v for v in found] == [
        repr(v + 0.0) if isinstance(v, float) else v for v in expected
    ]


def test_orders_are_read_as_sql_writes_them():
    assert parse_order("price desc, ts") == (By("price", True, False), By("ts", False, True))
    assert parse_order("`a b``c` ASC NULLS LAST,x DESC nulls first") == (By("a b`c", False, False), By("x", True, True))


@pytest.mark.parametrize("wide", [False, True])
def test_places_are_sorted_stably_whatever_the_ranges(wide):
    rng = Random(4)
    low, high = (-(1 << 63), (1 << 63) - 1) if wide else (-3, 3)
    keys = [np.array([rng.choice([low, high, 0, 1, -1]) for _ in range(500)], np.int64) for _ in range(3)]
    assert argsort(*keys).tolist() == sorted(range(500), key=lambda at: [int(k[at]) for k in keys])
    nothing = np.empty(0, np.int64)
    assert argsort(nothing, nothing).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_leaders_are_the_first_of_those_ranked(seed):
    rng = Random(seed)
    owner = np.sort(np.array([rng.randrange(20) for _ in range(100)]))
    table = pa.table({name: pa.array([rng.choice([1, 2, 3, None]) for _ in owner], pa.int32()) for name in "abc"})
    order = (By("a", True, False), By("b"), By("c", False, False))

    def column(name, at):
        return table.column(name).take(pa.array(at))

    place, _ = ranked(owner, order[:1], order[1:], column)
    found = leaders(owner, order, column)
    first = {int(owner[at]): at for at in reversed(place.tolist())}
    assert [table.take([at]).to_pylist() for at in found] == [table.take([first[int(owner[at])]]).to_pylist() for at in found]
    assert owner[found].tolist() == sorted(first)
