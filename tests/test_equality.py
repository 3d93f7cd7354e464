"""Rows are numbered alike exactly if they are equal, as pairs are compared."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from floodplain.equality import equality_classes
from floodplain.keys import columns_equal

NAN = float("nan")
COLUMNS = {
    "texts": pa.array(["a", "b", "", None, "ab", "a", "ü"]),
    "large texts": pa.array(["a", "b", None, "a"], pa.large_string()),
    "bytes": pa.array([b"\0", b"\0\0", b"", None, b"\0"]),
    "fixed bytes": pa.array([b"ab", b"ac", None, b"ab"], pa.binary(2)),
    "longs": pa.array([1, -1, 0, None, 1, 2**62]),
    "unsigned": pa.array([1, 0, None, 2**64 - 1, 1], pa.uint64()),
    "small": pa.array([1, -1, 0, None, 1], pa.int8()),
    "doubles": pa.array([0.0, -0.0, NAN, None, 1.5, -NAN, float("inf")]),
    "floats": pa.array([0.0, -0.0, NAN, None, 1.5], pa.float32()),
    "flags": pa.array([True, False, None, True]),
    "nulls": pa.nulls(4),
    "dates": pa.array([dt.date(2020, 1, 1), None, dt.date(2021, 1, 1), dt.date(2020, 1, 1)]),
    "times": pa.array([1, 2, None, 1], pa.timestamp("us", "UTC")),
    "times of day": pa.array([1, 2, None, 1], pa.time64("us")),
    "durations": pa.array([1, 2, None, 1], pa.duration("us")),
    "intervals": pa.array([(1, 2, 3), (1, 2, 4), None, (1, 2, 3)], pa.month_day_nano_interval()),
    "decimals": pa.array([Decimal("1.0"), Decimal("1.5"), None, Decimal("1.0")]),
    "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "structs": pa.array([{"a": 0.0, "b": "x"}, {"a": -0.0, "b": "x"}, {"a": None, "b": None}, None, {"a": NAN, "b": ""}] * 2),
    "lists": pa.array([[1, 2], [1], [], None, [None], [1, 2], [2, 1], [0]]),
    "fixed lists": pa.array([[1, 2], [1, 3], None, [1, 2], [None, 2]], pa.list_(pa.int64(), 2)),
    "nested": pa.array([[{"a": [0.0]}], [{"a": [-0.0]}], [{"a": []}], [{"a": None}], [None], [], None, [{"a": [0.0]}]]),
    "maps": pa.array([[("a", 0.0)], [("a", -0.0)], [("b", 0.0)], [], None, [("a", NAN)]], pa.map_(pa.string(), pa.float64())),
    "slice": pa.array([None, [1, 2], [1], None, [1, 2], [1, 2, 3]]).slice(1, 4),
    "no rows": pa.array([], pa.list_(pa.int64())),
}


def all_pairs(columns: list[pa.Array]) -> np.ndarray:
    count = len(columns[0])
    left, right = (pa.array(each.ravel()) for each in np.mgrid[0:count, 0:count])
    return columns_equal([c.take(left) for c in columns], [c.take(right) for c in columns]).reshape(count, count)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_rows_have_one_number_exactly_if_they_are_equal(column: pa.Array) -> None:
    numbers = equality_classes([column])
    assert ((numbers[:, None] == numbers[None, :]) == all_pairs([column])).all()


@pytest.mark.parametrize("seed", range(5))
def test_all_columns_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.choice(sorted(COLUMNS.keys() - {"no rows"}), 3, replace=False)
    columns = [COLUMNS[name].take(pa.array(rng.integers(0, len(COLUMNS[name]), 60))) for name in chosen]
    numbers = equality_classes(columns)
    assert ((numbers[:, None] == numbers[None, :]) == all_pairs(columns)).all()
