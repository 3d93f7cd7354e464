"""Counts what a processor does in a task, as the metrics of Spark's own operator do."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from floodplain.spark.transform_with_state.handle import Declared, Kind, LiveHandle
from floodplain.spark.transform_with_state.states import Counted
from floodplain.state.timers import TimersHandle

UPDATED, REMOVED = "numRowsUpdated", "numRowsRemoved"
REGISTERED, DELETED, EXPIRED = "numRegisteredTimers", "numDeletedTimers", "numExpiredTimers"
TIMER_MS = "timerProcessingTimeMs"
DELETED_VARS = "numDeletedStateVars"
VARS = {
    (kind, ttl): f"num{kind.capitalize()}State{'WithTTL' if ttl else ''}Vars"
    for kind in ("value", "list", "map")
    for ttl in (False, True)
}
"""Kind of a state variable, and whether it has a time to live → how many there are."""
TTL_EXPIRED = "numValuesRemovedDueToTTLExpiry"
NOT_EVICTED = "expired, not evicted"
"""See ``Counted``. Only for ourselves."""
CUSTOM = (
    *("initialStateProcessingTimeMs", *VARS.values(), DELETED_VARS, TIMER_MS),
    *(REGISTERED, DELETED, EXPIRED, TTL_EXPIRED),
)
"""The custom metrics of Spark's operator. Like Spark's they add up over tasks, the numbers of variables, too."""


class CountingHandle(LiveHandle):
    """Counts state variables, timers, and the rows of state that are written and removed."""

    def __init__(self, time_mode: str, declared: Mapping[str, Declared], timers: TimersHandle) -> None:
        super().__init__(time_mode, declared, timers)
        self.counts: Counter[str] = Counter()
        self._made: list[tuple[str, Counted]] = []

    def measures(self) -> dict[str, int]:
        """What was counted, by the names that Spark has for it."""
        made = [made for _, made in self._made]
        rows = {UPDATED: sum(state.updated for state in made), REMOVED: sum(state.removed for state in made)}
        return {**self.counts, **rows, NOT_EVICTED: sum(state.not_evicted for state in made)}

    def detach(self) -> None:
        for _, made in self._made:
            made.settle()
        super().detach()

    def _state(self, kind: Kind, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:
        made = super()._state(kind, name, schemas, ttl_ms)
        made.timed = bool(ttl_ms)
        self._made.append((name, made))
        self.counts[VARS[kind, bool(ttl_ms)]] += 1
        return made

    def deleteIfExists(self, stateName: str) -> None:
        super().deleteIfExists(stateName)
        self.counts[DELETED_VARS] += sum(name == stateName for name, _ in self._made)
        self._made = [(name, made) for name, made in self._made if name != stateName]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        super().registerTimer(expiryTimestampMs)
        self.counts[REGISTERED] += 1

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        super().deleteTimer(expiryTimestampMs)
        self.counts[DELETED] += 1
