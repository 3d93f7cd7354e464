"""Tests that share a Spark or a server run in one process."""

import os

import pytest

GROUP = "tests/test_groups.py"


@pytest.fixture(scope="module")
def shared() -> int:
    return os.getpid()


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process has no groups")
def test_a_test_with_a_fixture_of_its_file_is_in_a_group(request: pytest.FixtureRequest, shared: int):
    """pytest-xdist goes by the end of the id; an unsuitable version of pytest drops it without a word."""
    assert request.node.nodeid.endswith(f"@{GROUP}")
