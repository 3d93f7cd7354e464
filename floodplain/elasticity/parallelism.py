"""How many slots each operator has, and which key groups each slot. What a rescale asks for takes effect with the next epoch."""

import threading
from collections.abc import Mapping
from dataclasses import replace

from floodplain.elasticity.assignments import Wanted, assigned, updates
from floodplain.elasticity.measured_load import MeasuredLoad
from floodplain.errors import BadInput
from floodplain.plan.nodes import Plan
from floodplain.versions.records.assignment import checked_counts, checked_slots
from floodplain.versions.records.edit import AnswerRescale, Assignment, Update
from floodplain.versions.records.manifest import Manifest


class Parallelism:
    """The slots of the operators of a running pipeline. ``rescale`` is for any thread, all else for that of the epochs."""

    def __init__(self, head: Manifest, plan: Plan, slots: int | Mapping[str, int] | None, default: int) -> None:
        """``slots``: of all operators, or of some by name. Others have as many as in the last run, or ``default`` without one.

        Raises ``BadInput`` if that is not possible.
        """
        self._names = [operator.name for operator in plan.operators]
        self._key_groups = head.key_groups
        self.load = MeasuredLoad(head.key_groups)
        self._lock = threading.Lock()
        common = head.assignment.slots if head.assignment is not None else checked_slots(default, head.key_groups)
        counts = {name: now.slots if (now := head.assignment_of(name)) else common for name in self._names}
        chosen = {} if slots is None else checked_counts(slots, self._names, head.key_groups)
        self._answered: AnswerRescale | None = None
        self._chosen = frozenset(chosen)
        self._wanted = Wanted({**counts, **chosen}, slots if isinstance(slots, int) else common, plan.read_together())

    def adopt(self, head: Manifest, plan: Plan, renamed: Mapping[str, str]) -> None:
        """These operators run from the next epoch on. ``renamed``: former name → name; such an operator keeps its number of
        slots, unless the start has given it one by its new name. New ones have as many as the state has for all."""
        with self._lock:
            wanted, former = self._wanted, {new: old for old, new in renamed.items() if new not in self._chosen}
            self._names = [operator.name for operator in plan.operators]
            counts = {}
            for name in self._names:
                old = former.get(name, name)
                own = head.assignments.get(old) if old != name else None
                before = wanted.counts.get(old, wanted.counts.get(name, wanted.default))
                counts[name] = before if own is None else own.slots
            self._wanted = Wanted(counts, wanted.default, plan.read_together(), wanted.requested.intersection(counts))

    def rescale(self, slots: int | Mapping[str, int]) -> None:
        """Use so many slots for all operators, or for those that are named, from the next epoch on; balance these by their load.

        Raises ``BadInput`` if that is not possible; then nothing changes.
        """
        counts = checked_counts(slots, self._names, self._key_groups)
        default = self._wanted.default if isinstance(slots, Mapping) else checked_slots(slots, self._key_groups)
        with self._lock:
            requested = self._wanted.requested.union(counts)
            self._wanted = replace(self._wanted, counts={**self._wanted.counts, **counts}, default=default, requested=requested)

    @property
    def wanted(self) -> dict[str, int]:
        """Operator → its slots in the next epoch."""
        return dict(self._wanted.counts)

    def slots(self, head: Manifest) -> dict[str, int]:
        """Operator → its slots in the last epoch, or what it begins with."""
        return {name: now.slots if (now := head.assignment_of(name)) else count for name, count in self._wanted.counts.items()}

    def most_slots(self, head: Manifest) -> int:
        """Of an operator; of a pipeline without operators, what one would have."""
        without = self._wanted.default if head.assignment is None else head.assignment.slots
        return max(self.slots(head).values(), default=without)

    def next(self, head: Manifest) -> "NextSlots":
        """The assignments of the next epoch, and what records them."""
        answer = self._answer(head)
        wanted = self._wanted
        plans = assigned(head, wanted, self.load.by_operator())
        return NextSlots(plans, [*updates(head, plans, wanted.default), *answer], wanted)

    def _answer(self, head: Manifest) -> list[AnswerRescale]:
        """To the request in the log, which counts as ``rescale`` called when it is first seen."""
        request = head.rescale
        if request is None:
            return []
        if self._answered is None or self._answered.request != request.position:
            refused = ""
            try:
                self.rescale(request.slots or request.operators)
            except BadInput as error:
                refused = str(error)
            self._answered = AnswerRescale(request.position, refused)
        return [self._answered]

    def committed(self, done: "NextSlots") -> None:
        """They are in the log. What was requested since then is still to be done."""
        with self._lock:
            if self._wanted is done.wanted:
                self._wanted = replace(self._wanted, requested=frozenset())


class NextSlots:
    """The assignments of an epoch that is not committed yet."""

    def __init__(self, plans: Mapping[str, Assignment], changes: list[Update], wanted: Wanted) -> None:
        self.plans, self.changes, self.wanted = plans, changes, wanted
