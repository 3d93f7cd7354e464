"""A bounded rate for background work, which needs the disk, the network and the cores that epochs need."""

from collections.abc import Callable

from floodplain.clock import Clock

_SLICE_S = 0.2
"""How long a wait goes on after it need not."""
_SHORTEST_S = 0.001
"""Waits below this are put off: a sleep is no more exact than that."""


class Budget:
    """At most so many bytes a second, over any span of time, give or take one step. For one thread."""

    def __init__(self, bytes_per_s: int | None, clock: Clock, hurried: Callable[[], bool] = lambda: False) -> None:
        """``bytes_per_s``: None for no bound. ``hurried``: from then on nothing waits."""
        self._bytes_per_s, self._clock, self._hurried = bytes_per_s, clock, hurried
        self._free_at_s = clock.monotonic_s()

    def spend(self, size_bytes: int) -> None:
        """Wait until what was spent before has had its time, then spend this. Time that was not used is not saved up."""
        if self._bytes_per_s is None:
            return
        while (ahead_s := self._free_at_s - self._clock.monotonic_s()) >= _SHORTEST_S and not self._hurried():
            self._clock.sleep_s(min(ahead_s, _SLICE_S))
        self._free_at_s = max(self._free_at_s, self._clock.monotonic_s()) + size_bytes / self._bytes_per_s
