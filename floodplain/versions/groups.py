"""Arithmetic on sets of key groups kept as half-open ranges."""

from collections.abc import Iterable

from floodplain.versions.edit import GroupRanges


def union(ranges: Iterable[tuple[int, int]]) -> GroupRanges:
    """The same set, ascending, with no empty and no touching ranges."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low >= high:
            continue
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def intersect(a: GroupRanges, b: GroupRanges) -> GroupRanges:
    return union((max(low, other_low), min(high, other_high)) for low, high in a for other_low, other_high in b)


def subtract(a: GroupRanges, b: GroupRanges) -> GroupRanges:
    left = list(a)
    for cut_low, cut_high in b:
        left = [
            piece
            for low, high in left
            for piece in ((low, min(high, cut_low)), (max(low, cut_high), high))
            if piece[0] < piece[1]
        ]
    return union(left)


def size(ranges: GroupRanges) -> int:
    return sum(high - low for low, high in ranges)


def from_members(groups: Iterable[int]) -> GroupRanges:
    return union((group, group + 1) for group in groups)
