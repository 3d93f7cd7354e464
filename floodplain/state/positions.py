"""Positions of list elements: the epoch of the append and the ordinal within it, packed into one unsigned 64-bit integer.

So positions sort in the order of appends, and appending does not need the length of the list.
"""

import numpy as np
import numpy.typing as npt

from floodplain.errors import BadInput

ORDINAL_BITS = 24
MAX_ORDINAL = (1 << ORDINAL_BITS) - 1
"""One less than the number of elements that a key can append to a list in one epoch."""
MAX_EPOCH = (1 << (64 - ORDINAL_BITS)) - 1

Positions = npt.NDArray[np.uint64]


def pack(epoch: int, ordinals: npt.ArrayLike) -> Positions:
    """The positions of the elements with these ordinals in one epoch."""
    numbers = np.asarray(ordinals)
    if not 0 <= epoch <= MAX_EPOCH:
        raise BadInput(f"epoch {epoch} is not within 0 to {MAX_EPOCH}")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() <= MAX_ORDINAL):
        raise BadInput(f"a key can append at most {MAX_ORDINAL + 1} elements to a list in one epoch")
    return np.uint64(epoch << ORDINAL_BITS) | numbers.astype(np.uint64)


def unpack(positions: Positions) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The epoch and the ordinal of each position."""
    epochs = (positions >> np.uint64(ORDINAL_BITS)).astype(np.int64)
    return epochs, (positions & np.uint64(MAX_ORDINAL)).astype(np.int64)
