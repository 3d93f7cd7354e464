"""The benchmarks by name. Each is loaded when it runs: contenders come with packages that nothing else needs."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from floodplain.bench.harness import sizes
from floodplain.clock import SystemClock
from floodplain.errors import BadInput


def _state_types(quick: bool) -> dict[str, Any]:
    bench = import_module("floodplain.bench.state_types")
    return _told(bench.run(sizes.QUICK if quick else sizes.FULL, SystemClock()), quick)


def _counter(quick: bool) -> dict[str, Any]:
    return _on_spark("floodplain.bench.counter", quick)


def _process(quick: bool) -> dict[str, Any]:
    return _on_spark("floodplain.bench.process", quick)


def _nexmark(quick: bool) -> dict[str, Any]:
    return _on_spark("floodplain.bench.nexmark", quick)


def _peers(quick: bool) -> dict[str, Any]:
    return _on_spark("floodplain.bench.peer_comparison", quick)


def _on_spark(name: str, quick: bool) -> dict[str, Any]:
    bench = import_module(name)
    return _told(bench.run(bench.QUICK if quick else bench.FULL, SystemClock()), quick)


def _told(result: dict[str, Any], quick: bool) -> dict[str, Any]:
    """A result that says how it came to be."""
    return {**result, "figures": {**result["figures"], "quick": quick}}


_BENCHES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "state-types": _state_types,
    "counter": _counter,
    "process": _process,
    "nexmark": _nexmark,
    "peers": _peers,
}

NAMES = tuple(_BENCHES)


def run(name: str, quick: bool) -> dict[str, Any]:
    """Run a benchmark; progress goes to stderr. Returns a result in the form of ``bench.frame``.

    ``quick`` ends within five minutes on two cores: the sizes that a target names stay, there are fewer rounds.
    """
    bench = _BENCHES.get(name)
    if bench is None:
        raise BadInput(f"there is no benchmark {name!r}; there are: {', '.join(NAMES)}")
    try:
        return bench(quick)
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"benchmarks need the package {missing.name}: pip install floodplain[bench], on Spark floodplain[spark,java] too"
        ) from missing
