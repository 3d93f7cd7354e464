"""What Arrow's own full validation refuses is refused, however the texts look."""

import numpy as np
import pyarrow as pa
import pytest

from floodplain.store.rows.arrow_validation import validate, validate_batch


def texts(data: bytes, offsets: list[int]) -> pa.Array:
    """Two texts that come from a file with other offsets than were written."""
    assert len(offsets) == 3
    sound = pa.record_batch({"column": pa.array(["x", "y" * (len(data) - 1)])})
    written, schema = sound.serialize().to_pybytes(), sound.schema
    for before, after in (
        (np.array([0, 1, len(data)], np.int32).tobytes(), np.array(offsets, np.int32).tobytes()),
        (b"x" + b"y" * (len(data) - 1), data),
    ):
        assert written.count(before) == 1
        written = written.replace(before, after)
    return pa.ipc.read_record_batch(pa.py_buffer(written), schema).column(0)


SOUND = {
    "ascii": pa.array(["a", "", "bc"]),
    "with nulls": pa.array(["a", None, "bc"]),
    "slice": pa.array(["a", "bc", None, "def"]).slice(1, 2),
    "none": pa.array([], pa.string()),
    "only nulls": pa.array([None, None], pa.string()),
    "other letters": pa.array(["grün", "日本"]),
    "nested": pa.array([["a"], ["ü"]]),
    "numbers": pa.array([1, 2]),
}
BROKEN = {
    "no utf-8": texts(b"abc\xffd", [0, 1, 5]),
    "a letter cut in two": texts("übcd".encode(), [0, 1, 5]),
    "offsets that go back": texts(b"abcde", [0, 6, 5]),
    "offsets behind the end": texts(b"abcde", [0, 1, 99]),
    "offsets below zero": texts(b"abcde", [-1, 1, 5]),
    "nested": pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), texts(b"abc\xffd", [0, 1, 5])),
}


@pytest.mark.parametrize("column", SOUND.values(), ids=SOUND)
def test_sound_columns_pass(column):
    column.validate(full=True)
    validate(column)
    validate_batch(pa.record_batch({"column": column}))


@pytest.mark.parametrize("column", BROKEN.values(), ids=BROKEN)
def test_broken_columns_are_refused_as_arrow_refuses_them(column):
    for check in (lambda: column.validate(full=True), lambda: validate(column)):
        with pytest.raises(pa.ArrowInvalid):
            check()
    with pytest.raises(pa.ArrowInvalid):
        validate_batch(pa.record_batch({"sound": pa.array(["a"] * len(column)), "column": column}))
