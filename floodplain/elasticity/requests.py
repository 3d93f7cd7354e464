"""Requests to rescale, through the log: made by any process, answered by the query at its next boundary of epochs."""

from collections.abc import Mapping

import msgspec
import numpy as np

from floodplain.elasticity.assignments import Wanted, assigned, map_of
from floodplain.elasticity.balance import moved
from floodplain.errors import BadInput, Conflict
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.requirements import RequireOperators
from floodplain.versions.records.assignment import checked_counts, even
from floodplain.versions.records.edit import GroupRanges, RequestRescale
from floodplain.versions.records.groups import from_members, size
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.user_names import operator_of


class Requested(msgspec.Struct, frozen=True):
    """A request that is in the log."""

    position: int
    slots: dict[str, int]
    """Operator → the slots that it is to have."""
    replaced: int | None
    """The position of the request that waited before."""
    held: bool
    """Whether somebody holds the lease: if not, the next start takes the request up."""


class OperatorPlan(msgspec.Struct, frozen=True):
    """What a rescale does to an operator."""

    operator: str
    slots_before: int
    slots_after: int
    moved: GroupRanges
    """The key groups that another slot gets."""
    moved_bytes: int
    """Of state in them; it stays where it is."""
    bytes_before: tuple[int, ...]
    """Of state, by slot: what a run has is counted as if it were spread evenly over its key groups."""
    bytes_after: tuple[int, ...]


def request(history: History, slots: int | Mapping[str, int]) -> Requested:
    """Ask the query on this state, running or stopped, for so many slots of all operators or of some. The newest request counts.

    Raises ``BadInput`` for an unknown operator or an impossible number; then nothing is written.
    """
    head = history.refresh()
    counts = _counts(head, slots)
    for_all = 0 if isinstance(slots, Mapping) else slots
    update = RequestRescale(for_all, {} if for_all else counts)
    after = commit(history, [update], [RequireOperators(tuple(counts))])
    mine = after.rescale.position if after.rescale is not None else after.position
    now_ms = history.clock.now_ms()
    return Requested(mine, counts, head.rescale.position if head.rescale else None, after.lease.expires_ms > now_ms)


def answered(head: Manifest, position: int) -> bool:
    """Whether the query has done what was requested there. Raises ``BadInput`` if it has refused, ``Conflict`` if a newer request
    has taken its place."""
    if head.rescale is not None and head.rescale.position == position:
        return False
    answer = head.rescaled
    if answer is not None and answer.request == position:
        if answer.refused:
            raise BadInput(f"the query has refused: {answer.refused}")
        return True
    newer = head.rescale.position if head.rescale is not None else answer.request if answer is not None else 0
    raise Conflict(f"the request at position {position} was replaced by the one at position {newer}: the newest counts")


def plans(head: Manifest, slots: int | Mapping[str, int]) -> list[OperatorPlan]:
    """What a rescale would do if no load is measured, as just after a start: then all key groups count alike."""
    changed = _counts(head, slots)
    default = head.assignment.slots if head.assignment is not None else 1
    names = [*changed, *(name for name in _operators(head) if name not in changed)]
    counts = {name: changed.get(name, now.slots if (now := head.assignment_of(name)) else default) for name in names}
    made = assigned(head, Wanted(counts, default, (), frozenset(changed)), {})
    planned = []
    for name in changed:
        now = head.assignment_of(name) or even(default, head.key_groups, 0)
        before, after = (map_of(each, head.key_groups) for each in (now, made[name]))
        by_group = state_bytes(head, name)
        groups = moved(before, after)
        sums = (np.bincount(before, by_group, now.slots), np.bincount(after, by_group, made[name].slots))
        rounded = [tuple(np.rint(by_slot).astype(int).tolist()) for by_slot in sums]
        moved_bytes = int(np.rint(by_group[groups].sum()))
        planned.append(
            OperatorPlan(name, now.slots, made[name].slots, from_members(groups.tolist()), moved_bytes, rounded[0], rounded[1])
        )
    return planned


def state_bytes(head: Manifest, operator: str) -> np.ndarray:
    """Bytes of state of each key group: those of a run spread evenly over the key groups that it counts for."""
    total = np.zeros(head.key_groups)
    for run in (run for table, runs in head.runs.items() if operator_of(table) == operator for run in runs):
        for low, high in run.groups:
            total[low:high] += run.length / size(run.groups)
    return total


def _counts(head: Manifest, slots: int | Mapping[str, int]) -> dict[str, int]:
    operators = _operators(head)
    if not operators:
        raise BadInput("no query has run on this state yet, so it has no operators: start one with slots=…")
    return checked_counts(slots, operators, head.key_groups)


def _operators(head: Manifest) -> list[str]:
    return list(head.definitions)
