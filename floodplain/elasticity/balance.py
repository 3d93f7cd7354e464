"""Plans which slot each key group belongs to: balanced by load, with the fewest moves, hot key groups apart. Pure."""

import heapq
from dataclasses import dataclass

import numpy as np

AT_REST = 1 / 16
"""What a key group without load weighs, as a share of the mean: such key groups are spread by their number."""
LIGHT = 1 / 16
"""A key group with at most this share of a slot's load is light: it is placed with its neighbours, so that ranges stay long."""
_EXACT = 1e-9
"""Sums of the same weights in another order differ by less, as a share."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a plan has to reach. Tighter balance costs more moves."""

    tolerance: float = 0.05
    """How much more than the least possible the busiest slot may have."""
    hot: float = 2.0
    """A key group with more than so many times the mean load is hot. As many of the hottest as there are slots have one each."""


DEFAULT = Constraints()


def weights(load: np.ndarray) -> np.ndarray:
    """What key groups count in a plan: their load, of which all have at least a little. Equal if nothing was measured."""
    known = np.maximum(np.nan_to_num(np.asarray(load, np.float64), posinf=0.0), 0.0)
    if not known.sum() > 0:
        return np.ones(len(known))
    return known / known.mean() + AT_REST


def least_possible(weight: np.ndarray, slots: int) -> float:
    """No map can give its busiest slot less: a lower bound, which may be out of reach."""
    ascending = np.sort(weight)
    most = -(-len(weight) // slots)
    bounds = [weight.sum() / slots, ascending[-1], ascending[:most].sum()]
    if len(weight) > slots:
        bounds.append(ascending[-slots] + ascending[-slots - 1])
    return float(max(bounds))


def capacity(weight: np.ndarray, slots: int, constraints: Constraints = DEFAULT) -> float:
    """What a slot may have before key groups leave it."""
    return (1 + constraints.tolerance) * least_possible(weight, slots)


def balanced(slot_of_group: np.ndarray, slots: int, weight: np.ndarray, constraints: Constraints = DEFAULT) -> np.ndarray:
    """Key group → slot, for ``slots`` slots, from the present map.

    Each slot has a key group. The busiest slot has at most ``capacity``, or the mean and the heaviest key group: in any case
    less than ``2 + tolerance`` times the least possible.
    Where no hot key groups are to be set apart, the fewest key groups move that have to: those of slots that go, those that
    bring a slot down to ``capacity``, and one for each empty slot. Setting apart moves a hot key group, and what makes room
    for it. Equal arguments give equal plans. Requires: as many key groups as slots, or more; weights above 0.
    """
    plan = _Plan(np.array(slot_of_group, np.int64), slots, weight, capacity(weight, slots, constraints))
    hottest = _hottest(weight, slots, constraints.hot)
    plan.set_apart(hottest)
    plan.relieve(np.zeros(len(weight), bool))
    plan.seat(hottest)
    is_hot = np.zeros(len(weight), bool)
    is_hot[hottest] = True
    plan.relieve(is_hot)
    plan.place()
    plan.fill_empty()
    return plan.slot_of


def moved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The key groups that another slot has."""
    return np.flatnonzero(before != after)


def _hottest(weight: np.ndarray, slots: int, factor: float) -> np.ndarray:
    hot = np.flatnonzero(weight > factor * weight.mean())
    return hot[np.lexsort((hot, -weight[hot]))][:slots]


class _Plan:
    """A map under way. Key groups that have left their slot and have none yet are at slot -1."""

    def __init__(self, slot_of: np.ndarray, slots: int, weight: np.ndarray, most: float) -> None:
        self.slot_of, self._slots, self._weight, self._most = slot_of, slots, weight, most
        slot_of[(slot_of >= slots) | (slot_of < 0)] = -1

    def _loads(self) -> np.ndarray:
        kept = self.slot_of >= 0
        return np.bincount(self.slot_of[kept], self._weight[kept], self._slots)

    def _counts(self) -> np.ndarray:
        return np.bincount(self.slot_of[self.slot_of >= 0], minlength=self._slots)

    def _leaving(self) -> np.ndarray:
        """The key groups without a slot, the heaviest first."""
        groups = np.flatnonzero(self.slot_of < 0)
        return groups[np.lexsort((groups, -self._weight[groups]))]

    def set_apart(self, hottest: np.ndarray) -> None:
        """Of the hot key groups of a slot, only the hottest stays."""
        taken: set[int] = set()
        for group in hottest.tolist():
            slot = int(self.slot_of[group])
            if slot in taken:
                self.slot_of[group] = -1
            elif slot >= 0:
                taken.add(slot)

    def relieve(self, pinned: np.ndarray) -> None:
        """As few key groups as can be leave each slot that has too much; of equally few, the lightest. Not those ``pinned``."""
        loads = self._loads()
        too_full = loads > self._most * (1 + _EXACT)
        free = np.flatnonzero((self.slot_of >= 0) & ~pinned)
        free = free[too_full[self.slot_of[free]]]
        order = free[np.lexsort((free, -self._weight[free], self.slot_of[free]))]
        ends = np.searchsorted(self.slot_of[order], np.flatnonzero(too_full), side="right").tolist()
        start = 0
        for slot, end in zip(np.flatnonzero(too_full).tolist(), ends, strict=True):
            members, start = order[start:end], end
            self.slot_of[_lightest_enough(members, self._weight, loads[slot] - self._most)] = -1

    def seat(self, hottest: np.ndarray) -> None:
        """Hot key groups without a slot get one each that has none, the one with the least load."""
        seated = self.slot_of[hottest]
        free = np.setdiff1d(np.arange(self._slots), seated[seated >= 0])
        loads = self._loads()
        heap = [(loads[slot], slot) for slot in free.tolist()]
        heapq.heapify(heap)
        for group in hottest[seated < 0].tolist():
            _, slot = heapq.heappop(heap)
            self.slot_of[group] = slot

    def place(self) -> None:
        """All others get a slot. Heavy ones one by one, each where the least is; light ones in runs of neighbours."""
        leaving, loads = self._leaving(), self._loads()
        light = self._weight[leaving] <= LIGHT * self._weight.sum() / self._slots
        heap = [(load, slot) for slot, load in enumerate(loads.tolist())]
        heapq.heapify(heap)
        for group in leaving[~light].tolist():
            load, slot = heap[0]
            self.slot_of[group] = slot
            heapq.heapreplace(heap, (load + self._weight[group], slot))
        if light.any():
            self._pour(np.sort(leaving[light]))

    def _pour(self, groups: np.ndarray) -> None:
        """Neighbours stay together: slot after slot is filled up to one level, and each empty one gets at least one."""
        loads, empty = self._loads(), self._counts() == 0
        room = np.maximum(_level(loads, float(self._weight[groups].sum())) - loads, 0.0)
        receiving = np.flatnonzero((room > 0) | empty)
        ends = np.cumsum(room[receiving])
        middles = np.cumsum(self._weight[groups]) - self._weight[groups] / 2
        counts = np.diff(np.searchsorted(middles, ends), prepend=0)
        counts[-1] += len(groups) - counts.sum()
        _one_each(counts, empty[receiving])
        self.slot_of[groups] = np.repeat(receiving, counts)

    def fill_empty(self) -> None:
        """A slot that is still empty takes the heaviest key group of the slot with the most load that has two or more."""
        counts, loads = self._counts(), self._loads()
        for slot in np.flatnonzero(counts == 0).tolist():
            donor = int(np.argmax(np.where(counts > 1, loads, -1.0)))
            members = np.flatnonzero(self.slot_of == donor)
            group = members[np.argmax(self._weight[members])]
            self.slot_of[group] = slot
            for at, by in ((donor, -1), (slot, 1)):
                counts[at] += by
                loads[at] += by * self._weight[group]


def _lightest_enough(members: np.ndarray, weight: np.ndarray, excess: float) -> np.ndarray:
    """As few of the members as weigh ``excess``, the lightest neighbours in their order. Requires: the heaviest come first."""
    sums = np.concatenate(([0.0], np.cumsum(weight[members])))
    need = excess * (1 - _EXACT)
    count = min(int(np.searchsorted(sums, need)), len(members))
    windows = sums[count:] - sums[: len(sums) - count]
    first = int(np.searchsorted(-windows, -need, side="right")) - 1
    return members[max(first, 0) : max(first, 0) + count]


def _level(loads: np.ndarray, amount: float) -> float:
    """How high the least loaded slots stand once ``amount`` is poured over them."""
    ascending = np.sort(loads)
    levels = (np.cumsum(ascending) + amount) / np.arange(1, len(loads) + 1)
    lowest = int(np.argmax(np.append(levels[:-1] <= ascending[1:], True)))
    return float(levels[lowest])


def _one_each(counts: np.ndarray, empty: np.ndarray) -> None:
    """Moves single key groups to empty slots that would get none, as far as others have more than they need."""
    for at in np.flatnonzero(empty & (counts == 0)).tolist():
        donor = int(np.argmax(counts - empty))
        if counts[donor] - empty[donor] < 1:
            return
        counts[donor] -= 1
        counts[at] += 1
