"""What a Python tells of itself. It runs where nothing of ours may be installed: it is sent as it is, and imports as it goes."""

from collections.abc import Iterable, Iterator

MODULES = {"pyspark": "pyspark", "pyarrow": "pyarrow", "floodplain": "floodplain.runtime.task"}
"""What tasks need, and a module that shows whether it is there, with all that it needs itself."""


def told(_: Iterable[object]) -> Iterator[dict[str, str]]:
    """``python``, ``host``; of each of ``MODULES`` the version (empty: not known), or as ``no <name>`` why it is not there."""
    import socket
    import sys
    from importlib import import_module, metadata

    found = {"python": sys.executable or "", "host": socket.gethostname()}
    for name, module in MODULES.items():
        try:
            import_module(module)
        except Exception as error:
            found[f"no {name}"] = f"{type(error).__name__}: {error}"
            continue
        try:
            found[name] = str(getattr(sys.modules[name], "__version__", "") or metadata.version(name))
        except metadata.PackageNotFoundError:
            found[name] = ""
    yield found
