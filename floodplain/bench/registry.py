"""The benchmarks by name. Each is imported when it runs, because contenders need packages that nothing else does."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from floodplain.clock import SystemClock
from floodplain.errors import BadInput

_MODULES = {
    "state-types": "state_types",
    "counter": "counter",
    "process": "process",
    "nexmark": "nexmark",
    "cloud": "cloud",
    "peers": "peer_comparison",
    "slots": "slots",
}
"""Name → module. Each module has ``FULL`` and ``QUICK`` sizes, the ``CHOICES`` of ``only``, and ``run``."""

NAMES = tuple(_MODULES)


def run(name: str, quick: bool, only: Sequence[str] = ()) -> dict[str, Any]:
    """Run a benchmark; progress goes to stderr. Returns a result in the form of ``bench.harness.frame``.

    ``quick`` ends within five minutes on two cores: it has fewer rounds, but the sizes that the targets name. ``only``: run only
    these contenders or parts, and Floodplain.
    """
    if name not in _MODULES:
        raise BadInput(f"there is no benchmark {name!r}; there are: {', '.join(NAMES)}")
    try:
        bench = import_module(f"floodplain.bench.{_MODULES[name]}")
        unknown = [each for each in only if each not in bench.CHOICES]
        if unknown:
            raise BadInput(f"the benchmark {name} has no {', '.join(unknown)}: --only takes {', '.join(bench.CHOICES)}")
        sizes = replace(bench.QUICK if quick else bench.FULL, only=tuple(only))
        result: dict[str, Any] = bench.run(sizes, SystemClock())
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"benchmarks need the package {missing.name}: pip install floodplain[bench], on Spark floodplain[spark,java] too"
        ) from missing
    return {**result, "figures": {**result["figures"], "quick": quick}}
