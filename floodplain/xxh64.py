"""xxh64 over columns: many values at once, each with its own seed.

A seed per value is what lets Spark chain columns: the hash of one is the seed of the next.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[Any]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


def hash_ints(seeds: Hashes, values: Values) -> Hashes:
    """The hash of each value as a 32-bit integer; narrower ones are widened, with their sign."""
    halves = values.astype(np.int32, copy=False).view(np.uint32).astype(np.uint64)
    return _avalanche(_mix_half(seeds + (_P5 + np.uint64(4)), halves))


def hash_longs(seeds: Hashes, values: Values) -> Hashes:
    """The hash of each value as the 64 bits that it is. Requires: 8 bytes per value, contiguous."""
    return _avalanche(_mix_word(seeds + (_P5 + np.uint64(8)), values.view(np.uint64)))


def hash_bytes(seeds: Hashes, data: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Hashes:
    """The hash of ``data[start : start + length]`` for each row."""
    words, halves = _loader(data, 8), _loader(data, 4)
    hashes = seeds + _P5
    striped = np.flatnonzero(lengths >= 32)
    if striped.size:
        hashes[striped] = _hash_stripes(seeds[striped], words, starts[striped], lengths[striped] >> 5)
    hashes += lengths.view(np.uint64)
    at, rest = starts + (lengths & ~31), lengths & 31
    for step in range(3):
        _mix_where(hashes, rest >= 8 * (step + 1), _mix_word, words, at + 8 * step)
    at += rest & 24
    _mix_where(hashes, (rest & 4) != 0, _mix_half, halves, at)
    at += rest & 4
    for step in range(3):
        _mix_where(hashes, (rest & 3) > step, _mix_byte, data, at + step)
    return _avalanche(hashes)


def _rotl(x: Hashes, bits: int) -> Hashes:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _round(lane: Hashes, word: Hashes) -> Hashes:
    return _rotl(lane + word * _P2, 31) * _P1


def _mix_word(hashes: Hashes, word: Hashes) -> Hashes:
    return _rotl(hashes ^ (_rotl(word * _P2, 31) * _P1), 27) * _P1 + _P4


def _mix_half(hashes: Hashes, half: Hashes) -> Hashes:
    return _rotl(hashes ^ (half * _P1), 23) * _P2 + _P3


def _mix_byte(hashes: Hashes, byte: Hashes) -> Hashes:
    return _rotl(hashes ^ (byte * _P5), 11) * _P1


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _loader(data: npt.NDArray[np.uint8], width: int) -> Values:
    """A view that loads a little-endian word of ``width`` bytes at any byte position."""
    return np.ndarray((max(0, data.size - width + 1),), f"<u{width}", data, strides=(1,))


def _mix_where(hashes: Hashes, rows: Flags, mix: Callable[[Hashes, Hashes], Hashes], source: Values, at: Places) -> None:
    count = np.count_nonzero(rows)
    if count == len(rows):
        hashes[:] = mix(hashes, source[at].astype(np.uint64, copy=False))
    elif count:
        chosen = np.flatnonzero(rows)
        hashes[chosen] = mix(hashes[chosen], source[at[chosen]].astype(np.uint64, copy=False))


def _hash_stripes(seeds: Hashes, words: Values, starts: Places, stripes: Places) -> Hashes:
    """The state after all whole 32-byte stripes. Requires: every row has at least one."""
    lanes = np.stack([seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1], axis=1)
    at = starts[:, np.newaxis] + np.arange(0, 32, 8)
    done = 0
    # Rows leave in order of length; between two departures the same rows take every step, without gathering them again.
    for end in np.unique(stripes):
        rows = np.flatnonzero(stripes >= end)
        state, place = lanes[rows], at[rows]
        for step in range(done, end):
            state = _round(state, words[place + 32 * step])
        lanes[rows], done = state, end
    hashes = _rotl(lanes[:, 0], 1) + _rotl(lanes[:, 1], 7) + _rotl(lanes[:, 2], 12) + _rotl(lanes[:, 3], 18)
    for lane in range(4):
        hashes = (hashes ^ (_rotl(lanes[:, lane] * _P2, 31) * _P1)) * _P1 + _P4
    return hashes
