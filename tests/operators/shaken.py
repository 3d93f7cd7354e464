"""Events out of order, and runs over them that must all give the same: with more slots, rescaled, restarted, shuffled."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from floodplain.pipeline.stream import Output
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit

COLUMNS = "user string, page string, price double, seq int, at long"
NAN = float("nan")

Row = dict[str, Any]


@dataclass(frozen=True)
class Epoch:
    rows: list[Row]
    watermark_ms: int


def events(seed: int, *, epochs: int = 6, size: int = 40, users: int = 7, spread_ms: int = 60, step_ms: int = 25) -> list[Epoch]:
    """Few users, few values, so that there are ties; nulls and NaN among them. Some rows are late."""
    rng = Random(seed)
    found = []
    for number in range(epochs):
        rows = [
            {
                "user": rng.choice([*(f"u{n}" for n in range(users)), None]),
                "page": rng.choice(["a", "b", "c", None]),
                "price": rng.choice([1.5, -2.0, 7.0, 7.25, NAN, None, -0.0, 0.0]),
                "seq": rng.choice([1, 2, 3, None]),
                "at": number * step_ms + rng.randrange(spread_ms),
            }
            for _ in range(rng.randrange(size))
        ]
        found.append(Epoch(rows, number * step_ms))
    return found


def run(
    build: Callable[..., Output], given: list[Epoch], *, shaken: int | None = None, slots: int = 1
) -> list[dict[str, list[Row]]]:
    """What each epoch gave out. ``shaken``: rows shuffled, slots changed and the driver restarted, as this seed says."""
    kit, rng = PipelineKit(build, rows=COLUMNS, slots=slots), Random(shaken)
    found = []
    for epoch in given:
        rows = list(epoch.rows)
        if shaken is not None:
            rng.shuffle(rows)
            kit.rescale(rng.choice([1, 2, 3, 5]))
            if rng.random() < 0.4:
                kit.restart()
        found.append(kit.epoch(rows, watermark_ms=epoch.watermark_ms))
    return found


def script(given: list[Epoch]) -> list[KitEpoch]:
    """For ``survives_every_crash``, with a change of slots in the middle."""
    steps = [KitEpoch(epoch.rows, watermark_ms=epoch.watermark_ms) for epoch in given]
    half = len(steps) // 2
    return [*steps[:half], KitEpoch(given[half].rows, watermark_ms=given[half].watermark_ms, slots=3), *steps[half + 1 :]]


def bag(rows: list[Row]) -> list[str]:
    """Rows in a form to compare: NaN is NaN, −0.0 is 0.0."""
    return sorted(repr({name: value + 0.0 if isinstance(value, float) else value for name, value in row.items()}) for row in rows)


def on_time(given: list[Epoch]) -> list[list[Row]]:
    """The rows of each epoch that are not late."""
    before = [-(1 << 62), *(epoch.watermark_ms for epoch in given)]
    return [[row for row in epoch.rows if row["at"] > late] for epoch, late in zip(given, before, strict=False)]


def content(row: Row, *but: str) -> tuple[Any, ...]:
    """How rows stand that are alike in what they are ordered by: column after column, nulls first, NaN above all."""
    return tuple(cell(row[name]) for name in ("page", "price", "seq", "at") if name not in but)


def cell(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (1, 1, 0) if value != value else (1, 0, value)
