"""What object stores cost: list prices with their date, or a table of the user's own."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from floodplain.errors import BadInput
from floodplain.tier_use import TierUse, tiers_sum

OBJECT = "object"
"""The tier that is paid for."""
GB = 1 << 30
"""Object stores sell storage by 2^30 bytes."""
PER = 1000
"""Requests are sold by the thousand."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of requests and storage. A table of your own: ``Prices.load("prices.toml")``, or ``Prices(…)``."""

    name: str
    date: str
    """When these prices held."""
    put: float
    """Per 1,000 requests, as all of these."""
    get: float
    list: float
    head: float
    delete: float
    gb_month: float
    """Per GB (2^30 bytes) stored for a month."""
    read_gb: float = 0.0
    """Per GB read. Nothing within a region of the usual providers."""
    written_gb: float = 0.0
    currency: str = "USD"

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type in (str, "str"):
                if not isinstance(value, str):
                    raise BadInput(f"prices: {each.name} is {value!r}: write it as text")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise BadInput(f"prices: {each.name} is {value!r}: give a price of 0 or more")

    @classmethod
    def load(cls, path: str | Path) -> "Prices":
        """From a TOML or JSON file with a value for each field. ``read_gb``, ``written_gb`` and ``currency`` are optional."""
        place = Path(path)
        try:
            data = place.read_bytes()
            table = json.loads(data) if place.suffix == ".json" else tomllib.loads(data.decode())
        except OSError as error:
            raise BadInput(f"cannot read the prices in {place}: {error.strerror}") from error
        except ValueError as error:
            raise BadInput(f"the prices in {place} cannot be read: {error}") from error
        return cls._of(table, place)

    @classmethod
    def _of(cls, table: object, place: Path) -> "Prices":
        if not isinstance(table, dict):
            raise BadInput(f"the prices in {place} are no table: write name, date, put, get, list, head, delete and gb_month")
        known = {each.name for each in fields(cls)}
        needed = known - {"read_gb", "written_gb", "currency"}
        if unknown := sorted(table.keys() - known):
            raise BadInput(
                f"the prices in {place} have {', '.join(unknown)}, which is not known; there are: {', '.join(sorted(known))}"
            )
        if missing := sorted(needed - table.keys()):
            raise BadInput(f"the prices in {place} lack {', '.join(missing)}")
        try:
            return cls(**table)
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from None

    def of(self, use: TierUse) -> float:
        """What these requests cost."""
        requests = (
            use.puts * self.put + use.gets * self.get + use.lists * self.list + use.heads * self.head + use.deletes * self.delete
        )
        return requests / PER + (use.read_bytes * self.read_gb + use.written_bytes * self.written_gb) / GB

    def of_uses(self, uses: Mapping[str, Mapping[str, TierUse]]) -> float:
        """What was asked of object stores by all of them."""
        return self.of(tiers_sum(uses).get(OBJECT, TierUse()))

    def as_table(self) -> dict[str, str | float]:
        return asdict(self)


AMAZON = Prices("Amazon S3 Standard, us-east-1", "2026-11", 0.005, 0.0004, 0.005, 0.0004, 0.0, 0.023)
GOOGLE = Prices("Google Cloud Storage Standard, us-east1", "2024", 0.005, 0.0004, 0.005, 0.0004, 0.0, 0.020)
AZURE = Prices(
    "Azure Blob Storage hot, sample prices of its documentation", "2024-07-26", 0.0055, 0.00044, 0.0055, 0.00044, 0.0, 0.0208
)
NOTHING = Prices("no price: not an object store", "", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
LISTED = {"s3": AMAZON, "gs": GOOGLE, "az": AZURE}
"""By the scheme of a URL."""


def prices_at(url: str, own: Prices | None = None) -> Prices:
    """Of the blobs at ``url``: the user's own table, else list prices. A directory, or memory, costs nothing per request."""
    listed = LISTED.get(url.partition("://")[0])
    return NOTHING if listed is None else own or listed
