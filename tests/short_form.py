"""Which cases of a test are run by ``make test``; ``make soak-tests`` runs all."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *short: Any) -> list[Any]:
    """All cases; only those in ``short`` in the short form."""
    return [pytest.param(case, marks=() if case in short else pytest.mark.soak) for case in cases]
