"""Reports the versions in a Python environment.

Spark pickles it by value to its tasks, where Floodplain may not be installed: it imports nothing at the top.
"""

from collections.abc import Iterable, Iterator

MODULES = {"pyspark": "pyspark", "pyarrow": "pyarrow", "floodplain": "floodplain.runtime.task"}
"""Packages that tasks need → a module whose import shows that the package and all that it needs are installed."""


def probe(_: Iterable[object]) -> Iterator[dict[str, str]]:
    """``python``, ``host``, and of each of ``MODULES`` its version (empty: unknown), or as ``no <name>`` why its import fails."""
    import socket
    import sys
    from importlib import import_module, metadata

    report = {"python": sys.executable or "", "host": socket.gethostname()}
    for name, module in MODULES.items():
        try:
            import_module(module)
        except Exception as error:
            report[f"no {name}"] = f"{type(error).__name__}: {error}"
            continue
        try:
            report[name] = str(getattr(sys.modules[name], "__version__", "") or metadata.version(name))
        except metadata.PackageNotFoundError:
            report[name] = ""
    yield report
