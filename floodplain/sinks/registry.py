"""The sinks by name: what ``write(format, …)`` opens."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from floodplain.errors import BadInput
from floodplain.sinks.base import Sink
from floodplain.sinks.console import ConsoleSink
from floodplain.sinks.delta import DeltaSink
from floodplain.sinks.files import ParquetSink
from floodplain.sinks.kafka import KafkaSink
from floodplain.sinks.memory import MemorySink


def open_sink(format: str, options: Mapping[str, Any]) -> Sink:  # noqa: A002 — as Spark calls it
    """The sink that ``write(format, **options)`` asks for. Raises ``BadInput`` for a format or option that does not exist."""
    kinds: dict[str, Callable[..., Sink]] = {
        "parquet": ParquetSink,
        "delta": DeltaSink,
        "kafka": KafkaSink,
        "memory": MemorySink,
        "console": ConsoleSink,
    }
    if format not in kinds:
        raise BadInput(f"there is no sink {format!r}: use one of {', '.join(kinds)}, or foreach_batch(function)")
    known = inspect.signature(kinds[format]).parameters
    options = {name if name in known else _snake(name): value for name, value in options.items()}
    unknown = [name for name in options if name not in known]
    missing = [name for name, option in known.items() if option.default is option.empty and name not in options]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise BadInput(f"the sink {format} has no option {', '.join(unknown)}: {takes}")
    if missing:
        raise BadInput(f"the sink {format} needs {', '.join(missing)}: write({format!r}, {', '.join(f'{m}=…' for m in missing)})")
    return kinds[format](**options)


def _snake(name: str) -> str:
    """The name of an option as Spark spells it, in ours: ``mergeSchema``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
