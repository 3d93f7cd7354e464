"""Who asked the tiers for how much: requests by kind, bytes, waits, and hits of caches."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
R = TypeVar("R")
Count = Annotated[int, msgspec.Meta(ge=0)]


class TierUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tier was asked for: requests by kind, bytes, waits, and for a cache its hits."""

    puts: Count = 0
    gets: Count = 0
    lists: Count = 0
    deletes: Count = 0
    heads: Count = 0
    retries: Count = 0
    """Requests that were made again after a passing failure. They are among the requests, too."""
    hits: Count = 0
    misses: Count = 0
    read_bytes: Count = 0
    written_bytes: Count = 0
    evicted_bytes: Count = 0
    waited_us: Count = 0
    """How long callers waited for answers, in microseconds. What several threads wait for at the same time counts for each."""

    @property
    def requests(self) -> int:
        return self.puts + self.gets + self.lists + self.deletes + self.heads

    def __add__(self, other: "TierUse") -> "TierUse":
        return TierUse(*(mine + theirs for mine, theirs in zip(_numbers(self), _numbers(other), strict=True)))

    def __sub__(self, other: "TierUse") -> "TierUse":
        return TierUse(*(mine - theirs for mine, theirs in zip(_numbers(self), _numbers(other), strict=True)))


def _numbers(use: TierUse) -> tuple[int, ...]:
    return msgspec.structs.astuple(use)


COMMIT, PUBLISH, UPKEEP, OTHER = "driver.commit", "driver.publish", "driver.upkeep", "driver.other"
"""What a driver asks tiers for, beside the operators in their tasks: epochs begun and committed, output published, compaction and
garbage collection, and the rest, such as its start and renewals of its lease."""

Uses = dict[str, dict[str, TierUse]]
"""An operator, or something a driver does → tier → what it was asked for."""


def uses_sum(*several: Mapping[str, Mapping[str, TierUse]]) -> Uses:
    total: Uses = {}
    for uses in several:
        for user, tiers in uses.items():
            of_user = total.setdefault(user, {})
            for tier, use in tiers.items():
                of_user[tier] = of_user.get(tier, TierUse()) + use
    return total


def uses_since(now: Mapping[str, Mapping[str, TierUse]], before: Mapping[str, Mapping[str, TierUse]]) -> Uses:
    """What ``now`` has more than ``before``, which is an earlier state of it; without what has not changed."""
    more: Uses = {}
    for user, tiers in now.items():
        for tier, use in tiers.items():
            added = use - before.get(user, {}).get(tier, TierUse())
            if added != TierUse():
                more.setdefault(user, {})[tier] = added
    return more


def tiers_sum(uses: Mapping[str, Mapping[str, TierUse]]) -> dict[str, TierUse]:
    """By tier, over all users."""
    total: dict[str, TierUse] = {}
    for tiers in uses.values():
        for tier, use in tiers.items():
            total[tier] = total.get(tier, TierUse()) + use
    return total


class UseTally:
    """Adds up what tiers are asked for, by user and tier. Safe from several threads."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, user: str, tier: str, what: str, by: int) -> None:
        """``what``: a field of ``TierUse``."""
        with self._lock:
            self._counts[user, tier, what] += by

    def add_all(self, uses: Mapping[str, Mapping[str, TierUse]]) -> None:
        for user, tiers in uses.items():
            for tier, use in tiers.items():
                for what, by in msgspec.structs.asdict(use).items():
                    if by:
                        self.add(user, tier, what, by)

    def uses(self) -> Uses:
        with self._lock:
            counts = sorted(self._counts.items())
        fields: dict[tuple[str, str], dict[str, int]] = {}
        for (user, tier, what), count in counts:
            fields.setdefault((user, tier), {})[what] = count
        uses: Uses = {}
        for (user, tier), of_tier in fields.items():
            uses.setdefault(user, {})[tier] = TierUse(**of_tier)
        return uses


_doing: ContextVar[tuple[UseTally, str] | None] = ContextVar("_doing", default=None)


@contextmanager
def tallied(tally: UseTally, user: str) -> Iterator[None]:
    """What this thread asks tiers for within the block counts in this tally, for this user. See ``carried_tally`` for threads
    that it starts."""
    token = _doing.set((tally, user))
    try:
        yield
    finally:
        _doing.reset(token)


def carried_tally(call: Callable[P, R]) -> Callable[P, R]:
    """``call``, for other threads: what it asks tiers for counts as if this thread did."""
    doing = _doing.get()

    def carried(*args: P.args, **kwargs: P.kwargs) -> R:
        token = _doing.set(doing)
        try:
            return call(*args, **kwargs)
        finally:
            _doing.reset(token)

    return carried


def count_use(tally: UseTally, tier: str, what: str, by: int) -> None:
    """Count in the tally of the block that this thread is in, else in this one."""
    into, user = _doing.get() or (tally, OTHER)
    into.add(user, tier, what, by)


class UseCursor:
    """Reads a tally bit by bit. For one thread."""

    def __init__(self, tally: UseTally) -> None:
        self._tally = tally
        self._taken: Uses = {}
        self._seen: Uses = {}

    def new(self) -> Uses:
        """What came since it was last taken."""
        self._seen = self._tally.uses()
        return uses_since(self._seen, self._taken)

    def take(self) -> None:
        """What ``new`` returned last does not count as new any more."""
        self._taken = self._seen
