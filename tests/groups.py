"""Which tests run in one process of ``pytest -n``: those that share something that is slow to start."""

from collections.abc import Iterator

import pytest

OWN_SPARK = "own-spark"
"""Tests that start a Spark or a cluster themselves: one after the other, or they would race for two cores."""


DROP_IN = "spark-drop-in"
"""Half of the tests that share a Spark, by time: each half has a Spark of its own, or they would be the longest chain."""
DROP_IN_FOLDERS = ("tests/spark/transform_with_state/", "tests/spark/state_reader/")

LONGEST = (DROP_IN, "spark", OWN_SPARK, "kafka", "s3_server")
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
    if "spark" in names and item.nodeid.startswith(DROP_IN_FOLDERS):
        yield DROP_IN
    yield from (name for name in ("spark", "kafka", "s3_server") if name in names)
    if item.get_closest_marker("spark") is not None:
        yield OWN_SPARK
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = [] if fixtures is None else [each for several in fixtures.name2fixturedefs.values() for each in several]
    file = item.nodeid.partition("::")[0]
    if any(definition.scope != "function" and definition.baseid == file for definition in definitions):
        yield file
