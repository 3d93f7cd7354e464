"""Changes folded into results."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.operators.changelog.changelog import fold_changes


def test_the_last_row_of_a_key_counts():
    nan = float("nan")
    epochs = [pa.table({"k": [1.0, nan, -0.0], "v": ["a", "b", "c"]}), pa.table({"k": [nan, 0.0], "v": ["d", None]})]
    assert sorted(fold_changes(epochs, ["k"])["v"].to_pylist(), key=str) == [None, "a", "d"]
    assert fold_changes(epochs[0].slice(0, 0), ["k"]).num_rows == 0


def test_weights_add_up():
    given = pa.table({"k": ["a", "a", "b", "b", None, "c"], "weight": [1, 1, 1, -1, 1, 2]})
    assert sorted(map(str, fold_changes(given)["k"].to_pylist())) == ["None", "a", "a", "c", "c"]
    assert fold_changes(given.slice(0, 0)).schema == pa.schema({"k": pa.string()})


def test_what_was_never_given_out_cannot_be_taken_back():
    with pytest.raises(BadInput, match=r"'k': 'a'.* is retracted more often"):
        fold_changes(pa.table({"k": ["a", "b"], "weight": [-1, 1]}))
    with pytest.raises(BadInput, match="say by which keys"):
        fold_changes(pa.table({"k": ["a"]}))
