"""Merges: the built-in ones for every type they take, a user's own, and processes that do not have its code."""

import math
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadInput, MergeUnavailable, SchemaMismatch, UserError
from floodplain.store.rows import merge_functions
from floodplain.store.rows.definition import Column, value_table
from floodplain.store.store import Store
from tests.store import forge


def fold(name: str, operands: pa.Array, starts: list[int]) -> pa.Array:
    found = merge_functions.find(name)
    assert found is not None
    folded = found(operands, np.array(starts))
    assert folded.type == operands.type
    assert len(folded) == len(starts)
    return folded


NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal256(50, 2)),
]


@pytest.mark.parametrize("type_", NUMBERS, ids=str)
@pytest.mark.parametrize("name", ["sum", "count"])
def test_sums(name: str, type_: pa.DataType) -> None:
    operands = pa.array([Decimal(n) if pa.types.is_decimal(type_) else n for n in (1, 2, 3, 40, 5)], type_)
    assert [float(n) for n in fold(name, operands, [0, 3, 4]).to_pylist()] == [6, 40, 5]


def test_decimal_sums_are_exact_and_never_leave_their_type() -> None:
    operands = pa.array([Decimal("0.10"), Decimal("0.20"), Decimal("999.99")], pa.decimal128(5, 2))
    assert fold("sum", operands, [0, 2]).to_pylist() == [Decimal("0.30"), Decimal("999.99")]
    with pytest.raises(BadInput, match="does not fit"):
        fold("sum", operands, [0])


def test_integer_sums_wrap_as_sparks_do() -> None:
    assert fold("sum", pa.array([2**63 - 1, 1]), [0]).to_pylist() == [-(2**63)]


ORDERED: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), False, True),
    (pa.int8(), -5, 3),
    (pa.uint64(), 0, 2**64 - 1),
    (pa.float32(), -0.5, 7.25),
    (pa.float64(), -math.inf, math.inf),
    (pa.decimal128(5, 1), Decimal("-1.5"), Decimal("2.0")),
    (pa.decimal256(50, 1), Decimal("-1.5"), Decimal("2.0")),
    (pa.string(), "", "é"),
    (pa.large_string(), "a", "aa"),
    (pa.binary(), b"", b"\xff"),
    (pa.binary(2), b"aa", b"ab"),
    (pa.date32(), date(1, 1, 1), date(2024, 2, 29)),
    (pa.timestamp("us", "UTC"), datetime(1900, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)),
    (pa.duration("ms"), timedelta(days=-1), timedelta(days=1)),
]


@pytest.mark.parametrize(
    ("type_", "low", "high"), ORDERED, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_extremes(type_: pa.DataType, low: Any, high: Any) -> None:
    operands = pa.array([high, low, high, high, low], type_)
    assert fold("min", operands, [0, 2, 4]).to_pylist() == [low, high, low]
    assert fold("max", operands, [0, 2, 4]).to_pylist() == [high, high, low]


def test_nan_is_the_largest_number_as_in_spark() -> None:
    operands = pa.array([math.nan, 1.0, 2.0])
    assert fold("min", operands, [0]).to_pylist() == [1.0]
    assert math.isnan(fold("max", operands, [0])[0].as_py())


@pytest.mark.parametrize("type_", [pa.list_(pa.int8()), pa.large_list(pa.int8())], ids=str)
def test_append(type_: pa.DataType) -> None:
    operands = pa.array([[9], [1], [2, None], [], [3], []], type_)[1:]
    assert fold("append", operands, [0, 3, 4]).to_pylist() == [[1, 2, None], [3], []]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=6), min_size=1, max_size=6))
def test_folds_are_the_plain_loop(segments: list[list[int]]) -> None:
    starts = [sum(map(len, segments[:n])) for n in range(len(segments))]
    operands = pa.array([n for segment in segments for n in segment], pa.int64())
    loops = {"sum": sum, "min": min, "max": max}
    for name, loop in loops.items():
        assert fold(name, operands, starts).to_pylist() == [loop(segment) for segment in segments]
    listed = pa.array([[n] for segment in segments for n in segment], pa.list_(pa.int64()))
    assert fold("append", listed, starts).to_pylist() == segments
    chained = merge_functions.find(merge_functions.register_merge(chain))(operands.cast(pa.string()), np.array(starts))
    assert chained.to_pylist() == [",".join(map(str, segment)) for segment in segments]


@pytest.mark.parametrize(
    ("merge", "type_"),
    [
        ("sum", pa.string()),
        ("sum", pa.bool_()),
        ("sum", pa.decimal32(5, 2)),
        ("count", pa.timestamp("us")),
        ("min", pa.list_(pa.int8())),
        ("max", pa.struct([("a", pa.int8())])),
        ("max", pa.float16()),
        ("min", pa.null()),
        ("append", pa.int64()),
        ("append", pa.list_(pa.int8(), 2)),
        ("append", pa.map_(pa.int8(), pa.int8())),
        ("nothing", pa.int64()),
        ("os:system", pa.int64()),
    ],
)
def test_a_merge_that_cannot_fold_its_type_is_refused(merge: str, type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="column v"):
        value_table("t", {"k": pa.int64()}, {"v": Column(type_, merge=merge)})


def chain(older: pa.Array, newer: pa.Array) -> pa.Array:
    """A user's merge; the order of its operands shows."""
    return pc.binary_join_element_wise(older, newer, ",")


def short(older: pa.Array, newer: pa.Array) -> pa.Array:
    return older[1:]


def test_a_users_merge_must_have_an_import_path() -> None:
    with pytest.raises(BadInput, match="import path"):
        merge_functions.register_merge(lambda older, newer: newer)


def test_a_users_merge_that_loses_values_is_an_error() -> None:
    with pytest.raises(BadInput, match="returned 0 values for 1 pairs"):
        merge_functions.find(merge_functions.register_merge(short))(pa.array(["a", "b"]), np.array([0]))


CODE = """
import sys
from floodplain.store.store import Store
from floodplain.errors import MergeUnavailable
store = Store.open(sys.argv[1])
steps = list(store.compact(full=True))
assert steps, "nothing to compact"
try:
    store.snapshot().table("t").to_arrow()
    sys.exit("read without the code")
except MergeUnavailable as error:
    assert "chain" in str(error)
print(sum(step.rows_after for step in steps))
"""


@pytest.fixture
def chained(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "s", create=True, settings=forge.SETTINGS, clock=ManualClock(), randomness=SeededRandomness(1))
    name = merge_functions.register_merge(chain)
    with store.writer("test") as writer:
        values = {"v": Column(pa.string(), merge=name), "n": Column(pa.int64(), merge="sum")}
        writer.define(value_table("t", {"k": pa.int64()}, values))
    yield store
    store.close()


def test_operands_stay_unfolded_where_the_code_is_missing(chained: Store, tmp_path: Path) -> None:
    """A compactor without it keeps them, in order, and folds all else; one that has it folds them later."""
    store = chained
    forge.write(store, "t", ("put", {"k": [1, 4], "v": ["a", "z"], "n": [1, 1]}))
    for letter in "bcd":
        forge.write(store, "t", ("merge", {"k": [1, 2, 3], "v": [letter, letter, None], "n": [1, 1, 1]}))
    forge.write(store, "t", ("merge", {"k": [1], "v": ["e"]}), ("merge", {"k": [1], "v": ["f"]}))
    expected = {1: ("a,b,c,d,e,f", 4), 2: ("b,c,d", 3), 3: (None, 3), 4: ("z", 1)}

    def content() -> dict[int, tuple[str | None, int]]:
        return {row["k"]: (row["v"], row["n"]) for row in forge.rows(store, "t")}

    assert content() == expected
    command = [sys.executable, "-c", CODE, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    store.history.refresh()
    assert len(store.head.runs["t"]) == 1
    kept = store.head.runs["t"][0].rows
    assert kept > 4
    assert int(done.stdout) == kept
    assert content() == expected
    assert store.snapshot().table("t").multi_get(pa.table({"k": [1, 2]})).aligned()["v"].to_pylist() == ["a,b,c,d,e,f", "b,c,d"]
    forge.write(store, "t", ("merge", {"k": [1, 2], "v": ["g", "g"]}))
    assert content()[1] == ("a,b,c,d,e,f,g", 4)
    list(store.compact(full=True))
    assert store.head.runs["t"][0].rows == 4
    assert content() == {**expected, 1: ("a,b,c,d,e,f,g", 4), 2: ("b,c,d,g", 3)}


def test_a_fresh_process_says_which_merge_it_lacks(chained: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads what needs none of it."""
    forge.write(chained, "t", ("put", {"k": [1], "v": ["a"], "n": [1]}), ("merge", {"k": [2], "n": [5]}))
    monkeypatch.setattr(merge_functions, "_registered", {})
    assert {row["k"]: row["n"] for row in forge.rows(chained, "t")} == {1: 1, 2: 5}
    forge.write(chained, "t", ("merge", {"k": [1], "v": ["b"]}))
    table = chained.snapshot().table("t")
    with pytest.raises(MergeUnavailable, match="test_merge_functions:chain"):
        table.to_arrow()
    with pytest.raises(MergeUnavailable, match="table t"):
        table.multi_get(pa.table({"k": [1]}))
    assert table.multi_get(pa.table({"k": [2]})).aligned()["n"].to_pylist() == [5]


@pytest.mark.parametrize("steps", [1, 2, 5, 8, 9])
def test_a_users_merge_sees_operands_in_order(chained: Store, steps: int) -> None:
    for n in range(steps):
        forge.write(chained, "t", ("merge", {"k": [1, 2], "v": [str(n), f"-{n}"]}))
    expected = reduce(lambda older, newer: f"{older},{newer}", map(str, range(steps)))
    assert {row["v"] for row in forge.rows(chained, "t")} == {expected, ",".join(f"-{n}" for n in range(steps))}


def picky(older: pa.Array, newer: pa.Array) -> pa.Array:
    """A user's merge that some values cannot be given to."""
    if "bad" in newer.to_pylist():
        raise ValueError("this will not do")
    return newer


@pytest.mark.parametrize("keys", [1, 2, 7, 50])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_the_key_whose_rows_a_users_merge_cannot_take_is_named(keys: int, place: float) -> None:
    """Wherever it stands among the others, which are merged in the same calls."""
    bad = round(place * (keys - 1))
    values = {"v": Column(pa.string(), merge=merge_functions.register_merge(picky))}
    store = forge.with_table(value_table("t", {"k": pa.int64(), "site": pa.string()}, values))
    rows = {"k": range(keys), "site": [f"s{n}" for n in range(keys)]}
    told = rf"epoch 1, table t, key {{'k': {bad}, 'site': 's{bad}'}}: ValueError in merge tests.store.rows.test_merge_functions:picky: this"  # noqa: E501
    with pytest.raises(UserError, match=told):
        forge.write(
            store,
            "t",
            ("merge", {**rows, "v": ["fine"] * keys}),
            ("merge", {**rows, "v": ["bad" if n == bad else "fine" for n in range(keys)]}),
        )
    assert store.history.refresh().epoch == 0
