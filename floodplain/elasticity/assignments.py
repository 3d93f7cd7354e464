"""Plans the assignments of operators: which key groups of which operator go to which slot. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from floodplain.elasticity.balance import balanced, weights
from floodplain.versions.records.assignment import assignment_of, even, groups_of, same_map, slot_of_each_group
from floodplain.versions.records.edit import Assignment, AssignOperators, SetAssignment, Update
from floodplain.versions.records.manifest import Manifest


@dataclass(frozen=True)
class Wanted:
    """What a plan is made for."""

    counts: Mapping[str, int]
    """Operator → slots, of all operators of the pipeline."""
    default: int
    """Slots of operators that come later."""
    together: Sequence[Sequence[str]] = ()
    """Operators that read the same rows by the same keys: with equal numbers of slots they get one map, so that none shuffles."""
    requested: frozenset[str] = frozenset()
    """Operators whose slots were requested, by name or with all others: they are balanced anew even if the number stays."""


def assigned(head: Manifest, wanted: Wanted, load: Mapping[str, np.ndarray]) -> dict[str, Assignment]:
    """Operator → its assignment in the next epoch: the present one, unless it has another number of slots or was requested for.

    ``load``: operator → what each key group has to do, of operators of which something was measured.
    """
    version = 1 + _newest(head)
    plans: dict[str, Assignment] = {}
    for members in _planned_together(wanted):
        staying = {name: now for name in members if (now := _staying(head, wanted, name)) is not None}
        changing = [name for name in members if name not in staying]
        plans |= staying
        if changing:
            now = head.assignment_of(changing[0])
            measured = sum((load[name] for name in changing if name in load), np.zeros(head.key_groups))
            made = next(iter(staying.values()), None)
            made = made or _replanned(now, wanted.counts[changing[0]], head.key_groups, measured, version)
            plans |= {name: _kept(head.assignment_of(name), made) for name in changing}
    return {name: plans[name] for name in wanted.counts}


def updates(head: Manifest, plans: Mapping[str, Assignment], default: int) -> list[Update]:
    """What records these assignments; nothing if the manifest has them. If all are equal, one for all operators."""
    version = 1 + _newest(head)
    common = head.assignment
    first = next(iter(plans.values()), None)
    if first is not None and all(same_map(plan, first) for plan in plans.values()):
        common = first if common is None or not same_map(common, first) else common
    elif common is None or common.slots != default:
        common = _replanned(common, default, head.key_groups, np.zeros(head.key_groups), version)
    own = {name: plan for name, plan in plans.items() if not same_map(plan, common)}
    if common == head.assignment and own == head.assignments:
        return []
    made: list[Update] = [] if common == head.assignment and own else [SetAssignment(common)]
    return [*made, AssignOperators(own)] if own else made


def map_of(assignment: Assignment, key_groups: int) -> np.ndarray:
    """Key group → slot."""
    return slot_of_each_group(groups_of(assignment, key_groups), key_groups)


def _newest(head: Manifest) -> int:
    """The highest version of an assignment."""
    return max((each.version for each in (head.assignment, *head.assignments.values()) if each is not None), default=0)


def _planned_together(wanted: Wanted) -> list[list[str]]:
    """The operators that get one map: those that read the same rows and want as many slots."""
    sets: dict[object, list[str]] = {}
    number_of = {name: number for number, members in enumerate(wanted.together) for name in members}
    for name, slots in wanted.counts.items():
        sets.setdefault((number_of[name], slots) if name in number_of else name, []).append(name)
    return list(sets.values())


def _staying(head: Manifest, wanted: Wanted, operator: str) -> Assignment | None:
    """Its assignment, if nothing is to change it."""
    now = head.assignment_of(operator)
    return now if now is not None and now.slots == wanted.counts[operator] and operator not in wanted.requested else None


def _replanned(now: Assignment | None, slots: int, key_groups: int, load: np.ndarray, version: int) -> Assignment:
    if now is None:
        return even(slots, key_groups, version)
    return _kept(now, assignment_of(balanced(map_of(now, key_groups), slots, weights(load)), slots, version))


def _kept(now: Assignment | None, made: Assignment) -> Assignment:
    """The present one, with its version, if the plan changes nothing."""
    return now if now is not None and same_map(now, made) else made
