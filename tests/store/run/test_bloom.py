"""The membership filter: never false for what is in it, seldom true for what is not, and the same bytes for ever."""

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.store.run import bloom


def hashes(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64, endpoint=False)


def contains(data: bytes, wanted: np.ndarray) -> np.ndarray:
    return bloom.may_contain(np.frombuffer(data, np.uint8), wanted)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300))
def test_what_is_in_it_is_always_found(numbers: list[int]) -> None:
    wanted = np.array(numbers, np.uint64)
    assert contains(bloom.build(wanted), wanted).all()


def test_what_is_not_in_it_is_seldom_found() -> None:
    for count in (1_000, 100_000):
        present, absent = hashes(count, 1), hashes(100_000, 2)
        data = bloom.build(present)
        assert contains(data, present).all()
        assert contains(data, absent).mean() < 0.015


def test_it_takes_the_room_it_says() -> None:
    for count in (1, 42, 43, 10_000):
        size = len(bloom.build(hashes(count, 3)))
        assert size % bloom.BLOCK_BYTES == 0
        assert count * bloom.BITS_PER_KEY / 8 <= size < count * bloom.BITS_PER_KEY / 8 + bloom.BLOCK_BYTES


def test_no_keys_make_a_filter_that_finds_nothing() -> None:
    assert not contains(bloom.build(np.empty(0, np.uint64)), hashes(1000, 4)).any()
    assert len(contains(bloom.build(hashes(5, 5)), np.empty(0, np.uint64))) == 0


def test_its_bytes_never_change() -> None:
    """They are in files: other releases must read them."""
    spread = np.arange(1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert xxhash.xxh3_64_hexdigest(bloom.build(spread)) == "22fcba9e8ccd121d"
    one = bloom.build(np.array([1 << 40], np.uint64))
    assert [(at, byte) for at, byte in enumerate(one) if byte] == [(0, 1), (42, 1), (60, 1)]
