"""Where Spark's checkpoint is, where the state is, and whether the one may go on from the other."""

import json
import shutil
from pathlib import Path

import pytest

from floodplain.errors import BadInput
from floodplain.runtime.checkpoint.files import numbers, write
from floodplain.runtime.checkpoint.spark_checkpoint import agree, batch_entry, is_noted, is_replay
from floodplain.versions.records.edit import SourcePosition

QUERY = "q"


def offsets(batch: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{1000 + batch}}}\n{{"topic":{{"0":{batch}}}}}'


def written(folder: Path, begun: int, done: int, query: str | None = QUERY) -> Path:
    """A checkpoint as Spark leaves it: these are the last batches in its two logs."""
    for name, last, text in (("offsets", begun, offsets), ("commits", done, lambda _: "v1\n{}")):
        (folder / name).mkdir()
        for batch in range(last + 1):
            write(folder / name / str(batch), text(batch))
    if query is not None:
        write(folder / "metadata", json.dumps({"id": query}))
    return folder


def batches(folder: Path) -> dict[str, list[int]]:
    return {log: numbers(folder / log) for log in ("offsets", "commits")}


def at(batch: int) -> SourcePosition:
    return SourcePosition(QUERY, batch, offsets(batch)) if batch >= 0 else SourcePosition()


@pytest.mark.parametrize(("begun", "done"), [(4, 4), (4, 3), (5, 4)])
def test_a_driver_may_die_between_the_notes_of_a_batch(tmp_path, begun, done):
    agree(written(tmp_path, begun, done), at(4), 0)
    assert len(list((tmp_path / "offsets").glob("[0-9]*"))) == begun + 1, "nothing was rebuilt"


@pytest.mark.parametrize(("begun", "done"), [(9, 9), (6, 4), (6, 5), (5, 5), (3, 3), (3, 2), (-1, -1)])
def test_a_checkpoint_that_is_not_where_the_state_is_is_refused(tmp_path, begun, done):
    with pytest.raises(BadInput, match=rf"is at batch {begun}, and the state has all up to 4: .* Delete the checkpoint"):
        agree(written(tmp_path, begun, done), at(4), 0)


@pytest.mark.parametrize("query", [QUERY, None])
def test_a_checkpoint_with_batches_does_not_fit_a_state_without(tmp_path, query):
    for number, (begun, done) in enumerate([(0, 0), (4, 4), (1, -1)]):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(BadInput, match=f"has batches up to {begun}, and the state has none"):
            agree(written(tmp_path / str(number), begun, done, query), at(-1), 0)
    (tmp_path / "first").mkdir()
    agree(written(tmp_path / "first", 0, -1, query), at(-1), 0)


@pytest.mark.parametrize("begun", [-1, 2, 4, 9])
def test_one_without_an_id_is_rebuilt_whatever_is_left_of_it(tmp_path, begun):
    agree(written(tmp_path, begun, begun, query=None), at(4), 7)
    agree(tmp_path, at(4), 7)
    assert batches(tmp_path) == {"offsets": [3, 4], "commits": [4]}
    assert is_replay(at(4), batch_entry(tmp_path, 4, at(4)).position)


def test_the_batch_after_the_last_is_new_the_last_a_replay_and_any_other_refused():
    assert not is_replay(at(4), at(5)) and not is_replay(at(-1), at(0))
    assert is_replay(at(4), at(4))
    others = [at(6), at(10), at(3), at(0), SourcePosition("other", 5, offsets(5)), SourcePosition("other", 4, offsets(4))]
    for batch in [*others, SourcePosition(QUERY, 4, offsets(5))]:
        with pytest.raises(BadInput, match=r"neither the last one in the state .* nor the one after it"):
            is_replay(at(4), batch)
    with pytest.raises(BadInput, match="neither the last one in the state"):
        is_replay(at(-1), at(1))


def test_batches_without_a_stream_leave_its_place_open():
    """Static input is noted beside it."""
    assert not is_replay(SourcePosition("", -1, "", {"batches/monday": "done"}), at(0))


def test_what_spark_has_noted(tmp_path):
    written(tmp_path, 5, 4)
    assert is_noted(tmp_path, 4) and not is_noted(tmp_path, 5) and is_noted(tmp_path / "nothing", -1)


def test_one_that_the_state_went_back_from_is_made_anew(tmp_path):
    for number, (begun, done) in enumerate([(9, 9), (9, 8), (10, 9)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        agree(written(folder, begun, done), at(4), 7, [at(6), at(9)])
        assert batches(folder) == {"offsets": [3, 4], "commits": [4]}
        agree(folder, at(4), 7, [at(9)])


@pytest.mark.parametrize(("begun", "done"), [(11, 9), (10, 10), (8, 8), (12, 12)])
def test_one_that_is_elsewhere_is_refused_as_ever(tmp_path, begun, done):
    with pytest.raises(BadInput, match=f"is at batch {begun}, and the state has all up to 4"):
        agree(written(tmp_path, begun, done), at(4), 0, [at(9)])


def test_one_of_other_batches_or_another_query_is_not_where_the_state_went_back_from(tmp_path):
    other = SourcePosition(QUERY, 9, offsets(8))
    with pytest.raises(BadInput, match="is at batch 9"):
        agree(written(tmp_path, 9, 9), at(4), 0, [other, SourcePosition("foreign", 9, offsets(9))])


def test_where_the_state_went_back_to_before_all_input_nothing_is_left_of_it(tmp_path):
    agree(written(tmp_path, 9, 9), at(-1), 0, [at(9)])
    assert list(tmp_path.iterdir()) == []
    agree(tmp_path, at(-1), 0, [at(9)])


def test_going_back_and_forth_leaves_a_checkpoint_that_fits_alone(tmp_path):
    agree(written(tmp_path, 9, 9), at(9), 0, [at(9), at(4)])
    assert len(list((tmp_path / "offsets").glob("[0-9]*"))) == 10
    with pytest.raises(BadInput, match="the state has none"):
        agree(tmp_path, at(-1), 0, [at(8)])


@pytest.mark.parametrize("dies_after", range(4))
def test_who_dies_while_making_one_anew_leaves_one_that_can_be(tmp_path, dies_after, monkeypatch):
    """Before all input: a checkpoint is forgotten folder by folder."""
    written(tmp_path, 9, 9)
    (tmp_path / "sources").mkdir()
    left, remove = [dies_after], shutil.rmtree

    def removed(path, **options):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", removed)
    with pytest.raises(KeyboardInterrupt):
        agree(tmp_path, at(-1), 0, [at(9)])
    monkeypatch.undo()
    agree(tmp_path, at(-1), 0, [at(9)])
    assert not (tmp_path / "offsets").exists()
