"""The registry of sinks: what ``write(format, …)`` opens, by name. Packages add sinks by the entry point ``floodplain.sinks``."""

import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from floodplain.errors import BadInput
from floodplain.sinks.base import Sink

GROUP = "floodplain.sinks"
"""The group of entry points that sinks are looked up in."""
_BUILT_IN = tuple(
    EntryPoint(name, f"floodplain.sinks.{place}", GROUP)
    for name, place in (
        ("parquet", "files:ParquetSink"),
        ("delta", "delta:DeltaSink"),
        ("kafka", "kafka:KafkaSink"),
        ("memory", "memory:MemorySink"),
        ("console", "console:ConsoleSink"),
    )
)


def open_sink(format: str, options: Mapping[str, Any]) -> Sink:  # noqa: A002 — as Spark calls it
    """The sink of ``write(format, **options)``. Raises ``BadInput`` for a format or option that does not exist."""
    kind = _loaded(_entry(format))
    parameters = inspect.signature(kind).parameters.values()
    known = {each.name: each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    options = {
        name if name in known or (takes_any and _snake(name) not in known) else _snake(name): options[name] for name in options
    }
    unknown = [] if takes_any else [name for name in options if name not in known]
    missing = [name for name, option in known.items() if option.default is option.empty and name not in options]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise BadInput(f"the sink {format} has no option {', '.join(unknown)}: {takes}")
    if missing:
        raise BadInput(f"the sink {format} needs {', '.join(missing)}: write({format!r}, {', '.join(f'{m}=…' for m in missing)})")
    return kind(**options)


def _entry(name: str) -> EntryPoint:
    """The entry point of this name. Raises ``BadInput`` if there is none, or several of different packages."""
    sinks = _entries(tuple(sys.path))
    if name not in sinks:
        _entries.cache_clear()  # a package may have been installed since
        sinks = _entries(tuple(sys.path))
    if name not in sinks:
        raise BadInput(f"there is no sink {name!r}: use one of {', '.join(sinks)}, or foreach_batch(function)")
    if len(sinks[name]) > 1:
        packages = " and ".join(f"{_package(each)} ({each.value})" for each in sinks[name])
        raise BadInput(f"several packages have a sink {name!r}: {packages}: uninstall all but one, or have one renamed")
    return sinks[name][0]


@lru_cache(maxsize=1)
def _entries(path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:  # noqa: ARG001 — what is installed depends on it
    """Name → its entry points: built-in ones first, then those of packages by name, without duplicates."""
    sinks: dict[str, list[EntryPoint]] = {}
    for each in (*_BUILT_IN, *sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value))):
        same_name = sinks.setdefault(each.name, [])
        if all(each.value != other.value for other in same_name):
            same_name.append(each)
    return sinks


def _loaded(entry: EntryPoint) -> type[Sink]:
    """The class that an entry point names. Raises ``BadInput`` if it cannot be imported or is no sink."""
    where = f"the sink {entry.name} of {_package(entry)} ({entry.value})"
    try:
        kind: Any = entry.load()
    except Exception as error:
        raise BadInput(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Sink)):
        raise BadInput(f"{where} is no sink: name a class that inherits from floodplain.Sink")
    if inspect.isabstract(kind):
        lacks = ", ".join(sorted(kind.__abstractmethods__))
        raise BadInput(f"{where} does not implement {lacks}: add it")
    return kind


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else "floodplain"


def _snake(name: str) -> str:
    """Spark's camel-case name of an option as ours: ``mergeSchema`` → ``merge_schema``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
