"""Keys are told apart exactly, by whichever way they are compared."""

import numpy as np
import pyarrow as pa
import pytest

from floodplain.keys import columns_equal
from floodplain.store.rows.key_equality import KeyColumn, same_keys

COLUMNS = {
    "texts of one length": pa.array([f"user-{n:09}" for n in range(50)]),
    "texts of many lengths": pa.array([f"user-{n}" for n in range(200)]),
    "texts of eight bytes": pa.array([f"{n:08}" for n in range(50)]),
    "letters": pa.array(["a", "b", "a"] * 20),
    "empty texts": pa.array(["", "", ""]),
    "other letters": pa.array(["ü", "ö", "ß"] * 5),
    "bytes": pa.array([b"\0\xff" * 3, b"\0\xfe" * 3] * 9),
    "texts and nulls": pa.array(["a", None, "b"] * 9),
    "slice": pa.array([f"{n:03}" for n in range(90)]).slice(17, 40),
    "numbers": pa.array(range(60)),
    "small numbers": pa.array([1, -1, 0] * 9, pa.int8()),
    "numbers and nulls": pa.array([1, None, 0] * 9),
    "times": pa.array(range(60), pa.timestamp("us")),
    "floats": pa.array([0.0, -0.0, float("nan"), 1.5] * 9),
    "flags": pa.array([True, False] * 9),
    "structs": pa.array([{"a": "x"}, {"a": None}] * 9),
}


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
def test_rows_are_the_same_if_their_columns_are_equal(values):
    rng, column = np.random.default_rng(1), KeyColumn.of(values)
    copied = KeyColumn.of(pa.concat_arrays([values.slice(1), values.slice(0, 1)]))
    answers = set()
    for _ in range(200):
        rows = np.sort(rng.integers(0, len(values), 3))
        others = rows if rng.random() < 0.5 else rng.integers(0, len(values), 3)
        equal = columns_equal([values.take(pa.array(rows))], [values.take(pa.array(others))]).all()
        assert same_keys([column], rows, [copied], (others - 1) % len(values)) == equal
        answers.add(bool(equal))
    assert answers == ({True} if values.type == pa.string() and not any(values.to_pylist()) else {True, False})


def test_texts_of_other_lengths_are_never_the_same():
    short, long = (KeyColumn.of(pa.array(values)) for values in (["a", "b"], ["ab", "bc"]))
    assert not same_keys([short], np.array([0]), [long], np.array([0]))
    assert same_keys([short], np.array([], np.int64), [long], np.array([], np.int64))


def test_all_columns_of_a_key_count():
    names, numbers = KeyColumn.of(pa.array(["a", "a"])), KeyColumn.of(pa.array([1, 2]))
    one, other = np.array([0]), np.array([1])
    assert same_keys([names], one, [names], other)
    assert not same_keys([names, numbers], one, [names, numbers], other)
