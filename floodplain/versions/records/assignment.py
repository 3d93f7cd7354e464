"""The assignment of key groups to slots."""

from collections.abc import Collection, Mapping

import numpy as np

from floodplain.errors import BadInput
from floodplain.versions.records.edit import Assignment, GroupRanges


def checked_slots(slots: int, key_groups: int) -> int:
    """``slots`` if key groups can be divided among so many; raises ``BadInput`` otherwise."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= key_groups:
        raise BadInput(f"{slots!r} slots are not possible: use 1 to {key_groups}, which is the number of key groups")
    return slots


def checked_counts(slots: int | Mapping[str, int], operators: Collection[str], key_groups: int) -> dict[str, int]:
    """Operator → slots, of one number for all or of some operators by name. Raises ``BadInput`` for what is not possible."""
    if not isinstance(slots, Mapping):
        return dict.fromkeys(operators, checked_slots(slots, key_groups))
    unknown = [name for name in slots if name not in operators]
    if unknown:
        known = ", ".join(operators) or "none"
        raise BadInput(f"there is no operator {unknown[0]!r} to give slots to; explain() shows the operators: {known}")
    counts = {}
    for name, count in slots.items():
        try:
            counts[name] = checked_slots(count, key_groups)
        except BadInput as error:
            raise BadInput(f"operator {name}: {error}") from error
    return counts


def even(slots: int, key_groups: int, version: int) -> Assignment:
    """Neighbouring key groups to each slot, as many as evenly as they divide."""
    bounds = [slot * key_groups // slots for slot in range(slots)]
    return Assignment(version, slots, tuple((start, slot) for slot, start in enumerate(bounds)))


def assignment_of(slot_of_group: np.ndarray, slots: int, version: int) -> Assignment:
    """From the slot of each key group, by number. Neighbours of one slot are one entry."""
    starts = np.flatnonzero(np.diff(slot_of_group, prepend=-1))
    return Assignment(version, slots, tuple(zip(starts.tolist(), slot_of_group[starts].tolist(), strict=True)))


def same_map(one: Assignment, other: Assignment) -> bool:
    """Whether both have the same slots with the same key groups, whatever their versions."""
    return (one.slots, one.starts) == (other.slots, other.starts)


def groups_of(assignment: Assignment, key_groups: int) -> tuple[GroupRanges, ...]:
    """The key groups of each slot."""
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(assignment.slots)]
    ends = [start for start, _ in assignment.starts[1:]] + [key_groups]
    for (start, slot), end in zip(assignment.starts, ends, strict=True):
        if start < end:
            ranges[slot].append((start, end))
    return tuple(tuple(groups) for groups in ranges)


def slot_of_each_group(slots: tuple[GroupRanges, ...], key_groups: int) -> np.ndarray:
    """The slot of each key group, by number."""
    slot_of = np.zeros(key_groups, np.int64)
    for slot, ranges in enumerate(slots):
        for low, high in ranges:
            slot_of[low:high] = slot
    return slot_of


def slots_of(hashes: np.ndarray, slot_of_group: np.ndarray) -> np.ndarray:
    """The slot that each key hash belongs to."""
    bits = len(slot_of_group).bit_length() - 1
    groups = (hashes >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(hashes), np.int64)
    return slot_of_group[groups]


def order_by_slot(slot_of_row: np.ndarray, slots: int) -> tuple[np.ndarray, list[int]]:
    """The order of rows by slot, in which rows of a slot keep theirs, and where each slot begins and the last one ends."""
    # NumPy sorts numbers of 16 bits by radix, ten times as fast as larger ones.
    narrow = slot_of_row.astype(np.uint16 if slots <= 1 << 16 else np.int64)
    order = np.argsort(narrow, kind="stable")
    bounds: list[int] = np.append(0, np.cumsum(np.bincount(narrow, minlength=slots))).tolist()
    return order, bounds
