"""Which tests run in one process of ``pytest -n``: those that share something that is slow to start."""

from collections.abc import Iterator

import pytest

OWN_SPARK = "own-spark"
"""Tests that start a Spark or a cluster themselves: one after the other, or they would race for two cores."""


LONGEST = ("spark", OWN_SPARK, "kafka", "s3_server")
"""Groups that begin first, or one process would still work on one of them when the others have nothing left."""


def assign(items: list[pytest.Item]) -> None:
    """Marks tests for ``--dist loadgroup``: by Spark, server or fixture of a file. All others run where there is room."""
    groups = {item: next(_shared(item), None) for item in items}
    for item, group in groups.items():
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: LONGEST.index(groups[item]) if groups[item] in LONGEST else len(LONGEST))


def _shared(item: pytest.Item) -> Iterator[str]:
    """What the test shares with others, the slowest to start first."""
    names = getattr(item, "fixturenames", ())
    yield from (name for name in ("spark", "kafka", "s3_server") if name in names)
    if item.get_closest_marker("spark") is not None:
        yield OWN_SPARK
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = [] if fixtures is None else [each for several in fixtures.name2fixturedefs.values() for each in several]
    file = item.nodeid.partition("::")[0]
    if any(definition.scope != "function" and definition.baseid == file for definition in definitions):
        yield file
