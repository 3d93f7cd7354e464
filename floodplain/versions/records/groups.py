"""Arithmetic on sets of key groups kept as half-open ranges."""

from collections.abc import Iterable

import numpy as np

from floodplain.versions.records.edit import GroupRanges


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
    out = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low < high:
            out.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(a: GroupRanges, b: GroupRanges) -> GroupRanges:
    out = []
    cut = 0
    for low, high in a:
        while cut < len(b) and b[cut][1] <= low:
            cut += 1
        left, at = low, cut
        while at < len(b) and b[at][0] < high:
            if left < b[at][0]:
                out.append((left, b[at][0]))
            left = b[at][1]
            at += 1
        if left < high:
            out.append((left, high))
    return tuple(out)


def size(ranges: GroupRanges) -> int:
    return sum(high - low for low, high in ranges)


def from_members(groups: Iterable[int]) -> GroupRanges:
    bounds: list[list[int]] = []
    for group in sorted(groups):
        if bounds and group <= bounds[-1][1]:
            bounds[-1][1] = group + 1
        else:
            bounds.append([group, group + 1])
    return tuple((low, high) for low, high in bounds)


def from_mask(wanted: np.ndarray) -> GroupRanges:
    """Of a mask by key group."""
    bounds = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0)).tolist()
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))
