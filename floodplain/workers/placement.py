"""Which worker owns which slots: a slot stays where it is unless workers come or go."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from floodplain.versions.records.edit import Assignment, GroupRanges

Placements: TypeAlias = Mapping[str, Mapping[int, int]]
"""Operator → slot → worker."""


def all_placed(assignments: Mapping[str, Assignment], workers: Sequence[int], before: Placements) -> dict[str, dict[int, int]]:
    """Operator → slot → worker, each operator as ``placed`` does. Requires: there is a worker.

    Operators with one map have one placement, so that rows of equal keys stay with a worker. Where slots do not divide evenly,
    the workers get more that have less of other operators.
    """
    alike: dict[tuple[int, object], list[str]] = {}
    for name, assignment in assignments.items():
        alike.setdefault((assignment.slots, assignment.starts), []).append(name)
    placements: dict[str, dict[int, int]] = {}
    loads: Counter[int] = Counter()
    for (slots, _), names in alike.items():
        owners = next((before[name] for name in names if name in before), {})
        placement = placed(slots, workers, owners, loads)
        for name in names:
            placements[name] = placement
            loads.update(placement.values())
    return placements


def placed(
    slots: int, workers: Sequence[int], before: Mapping[int, int], loads: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Slot → worker: as evenly as slots divide, and with the fewest moves from ``before``. Requires: there is a worker.

    ``loads``: worker → what it has besides. Of those that own as many of the slots, the ones with less get more.
    """
    besides = loads or {}
    order = sorted(set(workers), key=lambda worker: (besides.get(worker, 0), worker))
    share, more = divmod(slots, len(order))
    owned: dict[int, list[int]] = {worker: [] for worker in order}
    for slot in range(slots):
        if before.get(slot) in owned:
            owned[before[slot]].append(slot)
    # Those that own the most may keep one more than the others.
    fullest = sorted(order, key=lambda worker: (-len(owned[worker]), besides.get(worker, 0), worker))[:more]
    room = {worker: share + (worker in fullest) for worker in order}
    placement = {slot: worker for worker in order for slot in owned[worker][: room[worker]]}
    homeless = iter([slot for slot in range(slots) if slot not in placement])
    for worker in order:
        for _ in range(room[worker] - min(len(owned[worker]), room[worker])):
            placement[next(homeless)] = worker
    return placement


def of_owners(slots: Sequence[GroupRanges], placement: Mapping[int, int]) -> dict[int, GroupRanges]:
    """Worker → the key groups of its slots, ascending."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for slot, worker in sorted(placement.items()):
        groups.setdefault(worker, []).extend(slots[slot])
    return {worker: tuple(sorted(ranges)) for worker, ranges in groups.items()}


def moved(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """How many slots another worker has now."""
    return sum(after[slot] != before[slot] for slot in after.keys() & before.keys())


def shared_out(sizes: Sequence[int], workers: Sequence[int]) -> dict[int, list[int]]:
    """Worker → the numbers of what it gets, in their order: the largest first, each to the worker with the least by then."""
    loads, shares = dict.fromkeys(workers, 0), dict[int, list[int]]()
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        worker = min(loads, key=lambda worker: (loads[worker], worker))
        loads[worker] += max(sizes[number], 1)
        shares.setdefault(worker, []).append(number)
    return {worker: sorted(numbers) for worker, numbers in shares.items()}
