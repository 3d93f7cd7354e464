"""Asks a blob store for several things at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from floodplain.tier_use import carried_tally
from floodplain.tiers.blobs import Blobs

T = TypeVar("T")
R = TypeVar("R")


def fan_out(blobs: Blobs, ask: Callable[[T], R], items: Sequence[T], most: int) -> list[R]:
    """What ``ask`` returns for each item, in order; at most ``most`` at a time. Where nothing is waited for, one by one."""
    if len(items) < 2 or blobs.answers_at_once:
        return [ask(item) for item in items]
    with ThreadPoolExecutor(min(most, len(items))) as pool:
        return list(pool.map(carried_tally(ask), items))
