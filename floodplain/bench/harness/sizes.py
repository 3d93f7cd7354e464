"""The sizes of the benchmark ``state-types``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    keys: int = 1_000_000
    """Keys of the table that the targets refer to."""
    factor: int = 10
    """How many times larger the large table is."""
    rmw_epochs: int = 24
    growth_rounds: int = 30
    lookups: int = 1_000
    sample: int = 10
    """Lookup keys for each new slot."""
    moves: int = 5
    type_keys: int = 250_000
    """Users per kind of state."""
    updates: int = 8
    rounds: int = 5
    points: int = 1_000
    only: tuple[str, ...] = ()
    """Some parts of the benchmark; empty for all."""

    @property
    def disk_bytes(self) -> int:
        return 400 * self.keys * self.factor


FULL = Sizes()
QUICK = Sizes(rmw_epochs=12, growth_rounds=15, moves=3, type_keys=100_000, updates=6, rounds=3, points=300)
