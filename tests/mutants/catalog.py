"""All planted bugs, by the area that they are in."""

from tests.mutants import (
    area_checkpoint,
    area_checksums,
    area_cost,
    area_fencing,
    area_garbage,
    area_live,
    area_log,
    area_misses,
    area_publishing,
    area_recency,
    area_timers,
    area_workers,
)
from tests.mutants.plant import Plant

AREAS: dict[str, tuple[Plant, ...]] = {
    "fencing": area_fencing.PLANTS,
    "log": area_log.PLANTS,
    "recency": area_recency.PLANTS,
    "garbage": area_garbage.PLANTS,
    "checksums": area_checksums.PLANTS,
    "publishing": area_publishing.PLANTS,
    "timers": area_timers.PLANTS,
    "checkpoint": area_checkpoint.PLANTS,
    "workers": area_workers.PLANTS,
    "live": area_live.PLANTS,
    "misses": area_misses.PLANTS,
    "cost": area_cost.PLANTS,
}


def chosen(only: str | None) -> list[tuple[str, Plant]]:
    """Area and plant of all, of those of one area, or of the one with this name."""
    named = [(area, plant) for area, plants in AREAS.items() for plant in plants]
    return [(area, plant) for area, plant in named if only in (None, area, plant.name)]
