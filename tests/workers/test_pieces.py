import os
import resource
from pathlib import Path

import pyarrow as pa
import pytest

from floodplain.errors import FloodplainError
from floodplain.runtime.pieces import Piece, PieceKey, Segment, by_slot
from floodplain.workers.pieces import DISK, MEMORY, NotKept, PieceStore, RowStream, mapped, part_of, rows_of
from tests.store.test_many_slots import steps

KEY = PieceKey("op", 0, "a")


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def _stream(*numbers):
    return RowStream.of(pa.table({"n": pa.array(numbers, pa.int64())}))


def _numbers(store, segments, key=KEY, nonce="one"):
    files = mapped(store.files(nonce, key))
    return [n for each in segments for batch in rows_of(part_of(files, each)) for n in batch.column("n").to_pylist()]


@pytest.fixture
def store():
    store = PieceStore()
    store.begin("one", 1 << 20)
    yield store
    store.close()


def test_rows_stay_in_memory_up_to_the_budget_and_then_go_to_disk(store):
    data = _stream(1, 2)
    store.begin("two", 2 * data.data.size)
    made = [store.add("two", KEY, 0, data) for _ in range(4)]
    assert [segment.file for segment in made] == [MEMORY, MEMORY, DISK, DISK]
    assert store.spilled_bytes == 2 * data.data.size
    assert _numbers(store, made, nonce="two") == [1, 2] * 4
    assert store.segments("two", KEY) == tuple(made)


def test_a_try_that_begins_twice_gets_no_more_memory(store):
    data = _stream(1)
    store.begin("two", data.data.size)
    store.add("two", KEY, 0, data)
    store.begin("two", data.data.size)
    assert store.add("two", KEY, 0, data).file == DISK


def test_rows_of_other_tries_are_neither_taken_nor_given(store):
    store.add("one", KEY, 0, _stream(1))
    store.begin("two", 1 << 20)
    for use in (
        lambda: store.add("one", KEY, 0, _stream(1)),
        lambda: store.segments("one", KEY),
        lambda: store.files("one", KEY),
        lambda: store.files("two", KEY),
    ):
        with pytest.raises(NotKept):
            use()
    assert store.segments("two", KEY) == ()


def test_dropping_another_try_drops_nothing(store):
    kept = store.add("one", KEY, 0, _stream(7))
    store.drop("two")
    assert _numbers(store, [kept]) == [7]


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_all_files_are_freed_when_a_try_is_over(budget):
    before = _open_files()
    store = PieceStore()
    for number in range(5):
        nonce = f"n{number}"
        store.begin(nonce, budget)
        for partition in range(4):
            key = PieceKey("op", partition, "a")
            assert _numbers(store, [store.add(nonce, key, 0, _stream(partition))], key, nonce) == [partition]
    assert _open_files() > before
    store.drop("n4")
    assert _open_files() == before
    store.close()


def test_rows_that_were_read_outlive_the_try(store):
    files = mapped_batches(store, store.add("one", KEY, 0, _stream(1, 2, 3)))
    store.drop("one")
    assert files[0].column("n").to_pylist() == [1, 2, 3]


def mapped_batches(store, segment):
    return list(rows_of(part_of(mapped(store.files("one", KEY)), segment)))


def test_what_a_write_that_failed_has_left_moves_nothing(store):
    first = store.add("one", KEY, 0, _stream(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (first.length + 100, hard))
    try:
        with pytest.raises((OSError, FloodplainError)):
            store.add("one", KEY, 0, _stream(*range(1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    second = store.add("one", KEY, 0, _stream(2))
    assert _numbers(store, [first, second]) == [1, 2]
    assert store.segments("one", KEY) == (first, second)


@pytest.mark.parametrize("segment", [Segment(0, 0, 1, 8, 1, 0), Segment(0, 0, -1, 4, 1, 0), Segment(0, 5, 0, 1, 1, 0)])
def test_bytes_outside_of_a_file_are_refused(segment):
    with pytest.raises(NotKept):
        part_of([pa.py_buffer(b"12345678")], segment)


def test_the_files_of_a_piece_are_not_inherited_by_other_processes(store):
    store.add("one", KEY, 0, _stream(1))
    store.begin("two", 0)
    store.add("two", KEY, 0, _stream(1))
    files = store.files("two", KEY)
    assert not any(os.get_inheritable(fd) for fd in files)
    for fd in files:
        os.close(fd)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_pieces_of_a_slot_are_found_without_a_look_at_those_of_others(workers):
    """With four times the slots, four times the steps."""

    def pieces(slots):
        return [
            Piece(PieceKey("op", worker, "a"), worker, tuple(Segment(slot, 0, 0, 1, 1, 0) for slot in range(slots)))
            for worker in range(workers)
        ]

    few, many = pieces(64), pieces(256)
    assert steps(lambda: by_slot(many)) <= 4.4 * steps(lambda: by_slot(few))
    assert by_slot(few)[5] == [Piece(piece.key, piece.worker, tuple(piece.of(5))) for piece in few]
