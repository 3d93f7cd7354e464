"""What would lower the cost of a state, computed from what its epochs have asked for."""

from collections.abc import Iterator

import msgspec

from floodplain.prices import GB, OBJECT, Prices
from floodplain.tier_use import TierUse, Uses, uses_sum

MONTH_S = 730 * 3600
CACHES = ("disk", "tmpfs")
SLOWER = (2, 10)
"""How many times as long between two epochs, to be proposed."""
LEAST = 0.01
"""A share of the whole below which nothing is proposed."""
MOST_INLINE_BYTES = 1 << 20
"""Deltas up to here may travel in reports."""
DRIVER = "driver."


class Storage(msgspec.Struct, frozen=True):
    total_bytes: int
    """All objects of the state, garbage that is not collected yet included."""
    live_bytes: int
    """Objects that the newest epoch needs."""
    past_bytes: int
    """Objects that only past epochs need, and garbage."""


class Saving(msgspec.Struct, frozen=True):
    what: str
    per_month: float
    """How much less a month would cost, at most."""
    percent: float


class Spending(msgspec.Struct, frozen=True):
    """What was asked for in so many epochs, and what is stored."""

    uses: Uses
    epochs: int
    interval_s: float
    prices: Prices
    storage: Storage

    def per_epoch(self, cost: float) -> float:
        return cost / max(self.epochs, 1)

    def per_month(self, cost: float) -> float:
        return self.per_epoch(cost) * MONTH_S / self.interval_s

    @property
    def storage_per_month(self) -> float:
        return self.storage.total_bytes / GB * self.prices.gb_month

    @property
    def total_per_month(self) -> float:
        return self.per_month(self.prices.of_uses(self.uses)) + self.storage_per_month


def savings(spent: Spending) -> tuple[Saving, ...]:
    """The most first. Each is by itself: they do not add up."""
    total = spent.total_per_month
    possible = [
        Saving(what, less, 100 * less / total)
        for what, less in (*_slower(spent), *_larger_cache(spent), *_inline(spent), *_retention(spent))
        if total and less / total >= LEAST
    ]
    return tuple(sorted(possible, key=lambda saving: -saving.per_month))


def _slower(spent: Spending) -> Iterator[tuple[str, float]]:
    """Rows come as before, so operators read as much state as before: only what each epoch asks for anyway becomes less."""
    fixed = spent.prices.of_uses(spent.uses) - spent.prices.of(_reads(_operators(spent)))
    for factor in SLOWER:
        yield f"an epoch every {spent.interval_s * factor:.3g} s", spent.per_month(fixed) * (1 - 1 / factor)


def _larger_cache(spent: Spending) -> Iterator[tuple[str, float]]:
    """What was evicted, and may have been read again, need not be read again."""
    reads = _reads(_operators(spent))
    cached = [tiers[tier] for tiers in spent.uses.values() for tier in CACHES if tier in tiers]
    size = f"{spent.storage.live_bytes / 1e6:,.0f} MB"
    if not cached:
        yield f"a cache of {size}, all of the live state, on each machine", spent.per_month(spent.prices.of(reads))
    elif reads.read_bytes and (evicted := sum(use.evicted_bytes for use in cached)):
        share = min(evicted / reads.read_bytes, 1.0)
        misses, hits = sum(use.misses for use in cached), sum(use.hits for use in cached)
        rate = 100 * misses / max(misses + hits, 1)
        what = f"a cache that holds all {size} of the live state (now {rate:.0f} % of reads miss it)"
        yield what, spent.per_month(spent.prices.of(reads)) * share


def _inline(spent: Spending) -> Iterator[tuple[str, float]]:
    """Small deltas in reports instead of objects of their own: one object for all of them."""
    writes = _operators(spent)
    if not writes.puts:
        return
    mean_bytes = writes.written_bytes / writes.puts
    if writes.puts > spent.epochs and mean_bytes <= MOST_INLINE_BYTES:
        spared = TierUse(puts=writes.puts - spent.epochs)
        what = f"StoreSettings.inline_bytes above {mean_bytes / 1024:,.0f} KiB, what a task writes in an epoch"
        yield what, spent.per_month(spent.prices.of(spared))


def _retention(spent: Spending) -> Iterator[tuple[str, float]]:
    past_mb = spent.storage.past_bytes / 1e6
    yield (
        f"fewer retained epochs: {past_mb:,.0f} MB are kept for past ones",
        spent.storage.past_bytes / GB * spent.prices.gb_month,
    )


def _operators(spent: Spending) -> TierUse:
    """What operators asked of object stores."""
    users = [{"": tiers} for user, tiers in spent.uses.items() if not user.startswith(DRIVER)]
    return uses_sum(*users).get("", {}).get(OBJECT, TierUse())


def _reads(use: TierUse) -> TierUse:
    return TierUse(gets=use.gets, heads=use.heads, read_bytes=use.read_bytes)
