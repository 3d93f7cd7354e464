"""The benchmarks by name."""

from collections.abc import Callable
from typing import Any

from floodplain.bench import sizes, state_types
from floodplain.clock import SystemClock
from floodplain.errors import BadInput

_BENCHES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "state-types": lambda quick: state_types.run(sizes.QUICK if quick else sizes.FULL, SystemClock()),
}

NAMES = tuple(_BENCHES)


def run(name: str, quick: bool) -> dict[str, Any]:
    """Run a benchmark; progress goes to stderr. Returns a result in the form of ``bench.frame``.

    ``quick`` ends within five minutes on two cores: the sizes that a target names stay, there are fewer rounds.
    """
    bench = _BENCHES.get(name)
    if bench is None:
        raise BadInput(f"there is no benchmark {name!r}; there are: {', '.join(NAMES)}")
    return bench(quick)
