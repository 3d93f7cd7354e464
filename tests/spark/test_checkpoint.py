"""Spark's checkpoint and the state must agree: the state says what is processed."""

import pytest

from floodplain.errors import BadInput
from floodplain.spark.checkpoint import agree, is_noted, rebuild
from floodplain.versions.edit import SourcePosition

LAST = SourcePosition("query", 4, 'v1\n{}\n{"logOffset":4}', {"sources/0/4": "v1\na"})


def test_a_checkpoint_rebuilt_from_the_state_agrees_with_it(tmp_path):
    agree(tmp_path, LAST, 7)
    agree(tmp_path, LAST, 7)
    assert is_noted(tmp_path, 4) and not is_noted(tmp_path, 5) and is_noted(tmp_path / "nothing", -1)


def test_a_checkpoint_ahead_of_the_state_is_refused_for_it_would_leave_rows_out(tmp_path):
    rebuild(tmp_path, LAST, 7)
    (tmp_path / "offsets" / "5").write_text('v1\n{}\n{"logOffset":5}')
    agree(tmp_path, LAST, 7)
    (tmp_path / "commits" / "5").write_text("v1\n{}")
    with pytest.raises(BadInput, match="has batch 5 as processed, the state has batches up to 4: rows would be left out"):
        agree(tmp_path, LAST, 7)


def test_an_empty_state_takes_no_checkpoint_that_has_batches(tmp_path):
    rebuild(tmp_path, LAST, 7)
    with pytest.raises(BadInput, match="belongs to another state"):
        agree(tmp_path, SourcePosition(), 0)
