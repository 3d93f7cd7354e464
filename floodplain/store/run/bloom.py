"""A membership filter over key hashes: a blocked Bloom filter, one cache line per key.

Format: 64-byte blocks. Block of hash h: the upper 32 bits of h, times the number of blocks, shifted right by 32. Bits within it:
six numbers of 9 bits each from ``h * ODD`` (modulo 2**64), lowest first; bit i is bit ``i % 8`` of byte ``i // 8``.
"""

import numpy as np

BITS_PER_KEY = 12
BLOCK_BYTES = 64
_PROBES = 6
_ODD = np.uint64(0x9E3779B97F4A7C15)


def build(hashes: np.ndarray) -> bytes:
    blocks = max(1, -(-len(hashes) * BITS_PER_KEY // (BLOCK_BYTES * 8)))
    filter_ = np.zeros(blocks * BLOCK_BYTES, np.uint8)
    for byte, bit in _probes(hashes, blocks):
        np.bitwise_or.at(filter_, byte, bit)
    return filter_.tobytes()


def may_contain(filter_: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """False only for hashes that were not among those the filter was built from."""
    maybe_present = np.ones(len(hashes), bool)
    for byte, bit in _probes(hashes, len(filter_) // BLOCK_BYTES):
        maybe_present &= (filter_[byte] & bit) != 0
    return maybe_present


def _probes(hashes: np.ndarray, blocks: int) -> list[tuple[np.ndarray, np.ndarray]]:
    base = ((hashes >> np.uint64(32)) * np.uint64(blocks) >> np.uint64(32)) * np.uint64(BLOCK_BYTES)
    mixed = hashes * _ODD
    probes = []
    for probe in range(_PROBES):
        bit = (mixed >> np.uint64(9 * probe)) & np.uint64(511)
        probes.append((base + (bit >> np.uint64(3)), np.uint8(1) << (bit & np.uint64(7)).astype(np.uint8)))
    return probes
