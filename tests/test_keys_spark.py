"""Spark itself is the oracle: every supported type, there and back by Arrow, hashed on both sides."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.keys import hash_columns

pytestmark = pytest.mark.spark


def spark_hashes(spark: Any, table: pa.Table) -> tuple[pa.Table, list[int]]:
    """The table as it comes back from Spark, and ``xxhash64`` over all its columns, row by row."""
    found = spark.createDataFrame(table).selectExpr("*", "xxhash64(*) AS hash_of_row").toArrow()
    return found.drop_columns("hash_of_row"), found["hash_of_row"].to_numpy().view(np.uint64).tolist()


def check(spark: Any, *columns: pa.Array) -> None:
    """What we hash before Spark saw it, and what we hash after, is what Spark hashes."""
    table = pa.table({f"c{position}": column for position, column in enumerate(columns)})
    returned, expected = spark_hashes(spark, table)
    assert hash_columns(table.columns).tolist() == expected
    assert hash_columns(returned.columns).tolist() == expected


def integers(bits: int) -> list[int | None]:
    return [0, 1, -1, None, 42, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]


def floats(dtype: str, nans: list[int]) -> pa.Array:
    limits = np.finfo(dtype)
    plain = np.array([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, limits.max, limits.smallest_subnormal], dtype)
    odd = np.array(nans, dtype.replace("f", "u")).view(dtype)
    return pa.concat_arrays([pa.array(plain), pa.nulls(1, pa.from_numpy_dtype(dtype)), pa.array(odd, from_pandas=False)])


TEXTS = [
    "",
    None,
    "a",
    "ä",
    "水",
    "🌊",
    "nul\0inside",
    *("x" * length for length in range(110)),
    *("é水" * n for n in range(1, 30)),
    "y" * 5_000,
]
BLOBS = [None if text is None else text.encode()[::-1] for text in TEXTS]

COLUMNS: dict[str, pa.Array] = {
    "boolean": pa.array([True, False, None]),
    "byte": pa.array(integers(8), pa.int8()),
    "short": pa.array(integers(16), pa.int16()),
    "int": pa.array(integers(32), pa.int32()),
    "long": pa.array(integers(64), pa.int64()),
    "float": floats("<f4", [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001]),
    "double": floats("<f8", [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1, (0x7FF0 << 48) + 1]),
    "date": pa.array([0, -1, 1, None, -719_162, 2_932_896, 19_000], pa.date32()),
    "timestamp": pa.array([0, -1, 1, None, -62_135_596_800 * 10**6, 253_402_300_799_999_999], pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.array([0, -1, 1, None, -62_135_596_800 * 10**6, 253_402_300_799_999_999], pa.timestamp("us")),
    "timestamp in ns": pa.array([0, 1_999, -2_000, -1_999, -1, None, 2**62], pa.timestamp("ns", "UTC")),
    "timestamp in ms": pa.array([0, 1, -1, None, 2**40], pa.timestamp("ms", "UTC")),
    "timestamp in s": pa.array([0, 1, -1, None, 2**33], pa.timestamp("s", "UTC")),
    "day-time interval": pa.array([0, 1, -1, None, 2**62, -(2**62)], pa.duration("us")),
    "time": pa.array([0, 1_000, None, 86_399_999_999_000], pa.time64("ns")),
    "string": pa.array(TEXTS),
    "large string": pa.array(TEXTS, pa.large_string()),
    "binary": pa.array(BLOBS),
    "large binary": pa.array(BLOBS, pa.large_binary()),
    "fixed-size binary": pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
    "null": pa.nulls(3),
    "struct": pa.array(
        [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
    ),
    "array": pa.array([[1, 2, None, 3], [], None, [None], [7]], pa.list_(pa.int64())),
    "array of array": pa.array([[["a"], [], None, ["b", None]], [], None, [[]]], pa.list_(pa.list_(pa.string()))),
    "array of double": pa.array([[0.0, -0.0, math.nan], None, [1.5]], pa.list_(pa.float64())),
    "array of struct": pa.array(
        [[{"n": 1, "d": Decimal("1.5")}, None, {"n": None, "d": Decimal("-7.25")}], [], None],
        pa.list_(pa.struct([("n", pa.int16()), ("d", pa.decimal128(25, 2))])),
    ),
    "struct of struct": pa.array(
        [{"s": {"x": 1.0, "l": [dt.date(1960, 1, 1)]}, "b": b"z"}, {"s": None, "b": None}, None],
        pa.struct([("s", pa.struct([("x", pa.float32()), ("l", pa.list_(pa.date32()))])), ("b", pa.binary())]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_each_type(spark: Any, name: str) -> None:
    column = COLUMNS[name]
    check(spark, column)
    check(spark, pa.array(range(len(column))), column, column)


def test_decimals_of_every_precision(spark: Any) -> None:
    edges = [0, 1, 127, 128, 255, 256, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**71, 2**103, 2**119]
    for first in range(1, 39, 6):
        columns = []
        for digits in range(first, min(first + 6, 39)):
            unscaled = [sign * min(edge, 10**digits - 1) for edge in [*edges, 10**digits - 1] for sign in (1, -1)]
            scale = digits // 3
            columns.append(pa.array([*(Decimal(f"{value}E-{scale}") for value in unscaled), None], pa.decimal128(digits, scale)))
        for column in columns:
            check(spark, column)
        check(spark, *columns)


def test_many_columns_chained(spark: Any) -> None:
    rows = 3_000
    picks = np.random.default_rng(7)
    columns = [column.take(pa.array(picks.integers(0, len(column), rows))) for column in COLUMNS.values()]
    check(spark, *columns)
    check(spark, *columns[::-1])


def test_random_strings_and_numbers(spark: Any) -> None:
    random = np.random.default_rng(11)
    blobs = [random.bytes(int(length)) for length in random.integers(0, 120, 5_000)]
    check(spark, pa.array(random.integers(-(2**63), 2**63 - 1, 5_000)), pa.array(blobs), pa.array(random.normal(size=5_000)))


@pytest.mark.parametrize("expression", ["map(1, 2)", "parse_json('1')", "array(map(1, 2))"])
def test_what_we_refuse_spark_refuses(spark: Any, expression: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="HASH_"):
        spark.sql(f"SELECT xxhash64({expression})")
