"""What a state costs: the requests of its retained epochs, by operator and tier, and its storage, priced."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from floodplain.cost.savings import MONTH_S, Saving, Spending, Storage, savings
from floodplain.prices import LISTED, OBJECT, Prices, prices_at
from floodplain.store.store import Store
from floodplain.tier_use import TierUse, tiers_sum, uses_since
from floodplain.tiers import paths
from floodplain.tiers.redact import without_credentials
from floodplain.versions.records.manifest import Manifest

STORED = (paths.FORMAT, paths.LOG, paths.MANIFESTS, paths.RUNS, paths.SEEN, paths.STAGED, paths.PINS)
"""What a state consists of, by prefix."""


class CostRow(msgspec.Struct, frozen=True):
    user: str
    """An operator, or what the driver does: ``driver.commit``, ``driver.publish``, ``driver.upkeep``, ``driver.other``."""
    tier: str
    use: TierUse
    """In all counted epochs together."""
    cost_per_epoch: float
    cost_per_month: float


class CostReport(msgspec.Struct, frozen=True):
    """What the retained epochs of a state have cost, and what a month like that costs."""

    location: str
    epoch: int
    """The newest."""
    since_epoch: int
    """Epochs after this one are counted."""
    epochs: int
    """How many of them tell what they asked for."""
    interval_s: float
    """From one epoch to the next: as measured, or as it was given."""
    interval: Literal["measured", "given"]
    prices: dict[str, str | float]
    rows: tuple[CostRow, ...]
    requests_per_epoch: float
    """Of object stores; of a directory, of that."""
    cost_per_epoch: float
    """Of requests."""
    storage: Storage
    requests_per_month: float
    """What requests cost in a month, as all that follows."""
    storage_per_month: float
    cost_per_month: float
    savings: tuple[Saving, ...]
    """What would lower it, the most first."""
    notes: tuple[str, ...]
    """What the figures do not cover."""


def cost_of(store: Store, location: str, *, prices: Prices | None = None, interval_s: float | None = None) -> CostReport:
    """Reads the newest manifest and that of the oldest retained epoch, and lists what is stored.

    ``prices``: instead of those of the settings. ``interval_s``: as if an epoch came so often.
    """
    head, base = store.history.refresh(), _base(store)
    url = store.history.blobs.url
    table = prices_at(url, prices or store.history.settings.prices)
    billed = OBJECT if url.partition("://")[0] in LISTED else store.history.blobs.tier
    epochs = head.used_epochs - base.used_epochs
    uses = uses_since(head.used, base.used) if epochs else {}
    every_s = interval_s or _interval_s(store, head, base)
    spent = Spending(uses, epochs, every_s, table, _storage(store, head))
    rows = tuple(
        CostRow(user, tier, use, *_priced(spent, tier, use)) for user, tiers in uses.items() for tier, use in tiers.items()
    )
    return CostReport(
        location=without_credentials(location),
        epoch=head.epoch,
        since_epoch=base.epoch,
        epochs=epochs,
        interval_s=every_s,
        interval="measured" if interval_s is None else "given",
        prices=table.as_table(),
        rows=rows,
        requests_per_epoch=tiers_sum(uses).get(billed, TierUse()).requests / max(epochs, 1),
        cost_per_epoch=spent.per_epoch(table.of_uses(uses)),
        storage=spent.storage,
        requests_per_month=spent.per_month(table.of_uses(uses)),
        storage_per_month=spent.storage_per_month,
        cost_per_month=spent.total_per_month,
        savings=savings(spent),
        notes=_notes(head, table, epochs),
    )


def _base(store: Store) -> Manifest:
    """What to count from: the oldest retained epoch, or the empty state if that is the only one."""
    head = store.head
    oldest = head.epochs[0].epoch if head.epochs else head.epoch
    return store.history.at(oldest) if oldest < head.epoch else Manifest(head.store, head.key_groups)


def _interval_s(store: Store, head: Manifest, base: Manifest) -> float:
    if not head.epochs:
        return 1.0
    began_ms = base.epochs[-1].at_ms if base.epochs else store.history.format.created_ms
    return max(head.epochs[-1].at_ms - began_ms, 1) / 1000 / max(head.epoch - base.epoch, 1)


def _storage(store: Store, head: Manifest) -> Storage:
    sizes: Mapping[str, int] = {info.name: info.size_bytes for prefix in STORED for info in store.history.blobs.list(prefix)}
    live = sum(sizes.get(name, 0) for name in head.objects())
    runs = sum(size for name, size in sizes.items() if name.startswith((paths.RUNS, paths.SEEN)))
    return Storage(total_bytes=sum(sizes.values()), live_bytes=live, past_bytes=runs - live)


def _priced(spent: Spending, tier: str, use: TierUse) -> tuple[float, float]:
    cost = spent.prices.of(use) if tier == OBJECT else 0.0
    return spent.per_epoch(cost), spent.per_month(cost)


def _notes(head: Manifest, prices: Prices, epochs: int) -> tuple[str, ...]:
    notes = []
    if not epochs:
        reason = "no epoch is committed yet" if not head.epoch else "no retained epoch has recorded its requests"
        notes.append(f"{reason}: only storage is counted")
    if not prices.date and prices.gb_month == 0.0:
        notes.append("requests to a directory cost nothing; what its disk costs is not known here: see the bytes of storage")
    notes.append(f"a month is {MONTH_S // 3600} hours; data that leaves the region of the object store is not counted")
    return tuple(notes)
