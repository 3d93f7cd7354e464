"""Which tests run in one process of ``pytest -n``: those that share something that is slow to start."""

from collections.abc import Iterable, Iterator

import pytest

SPARKS = 2
"""Spark sessions side by side. Their tests mostly wait, but each session costs a JVM."""


def assign(items: Iterable[pytest.Item]) -> None:
    """Marks tests for ``--dist loadgroup``: by Spark session, server or fixture of a file. All others run where there is room."""
    sessions: dict[str, int] = {}
    for item in items:
        group = next(_shared(item), None)
        if group == "spark":
            file = item.nodeid.partition("::")[0]
            group = f"spark-{sessions.setdefault(file, len(sessions)) % SPARKS}"
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _shared(item: pytest.Item) -> Iterator[str]:
    """What the test shares with others, the slowest to start first."""
    names = getattr(item, "fixturenames", ())
    yield from (name for name in ("spark", "kafka", "s3_server") if name in names)
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = [] if fixtures is None else [each for several in fixtures.name2fixturedefs.values() for each in several]
    file = item.nodeid.partition("::")[0]
    if any(definition.scope != "function" and definition.baseid == file for definition in definitions):
        yield file
