"""Rows that were left out, by operator and reason, as edits count them."""

from collections.abc import Mapping

from floodplain.state.tables import SEPARATOR

INPUT = "input"
"""Stands for the pipeline's own input among the operators."""


def counts(late: Mapping[str, int], ignored: Mapping[str, int]) -> dict[str, int]:
    """For an edit, of rows by operator."""
    return {f"{name}{SEPARATOR}{why}": n for why, by in (("late", late), ("ignored", ignored)) for name, n in by.items()}


def totals(counted: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Operator → why rows were left out → how many, of what stands in a manifest."""
    found: dict[str, dict[str, int]] = {}
    for name, count in sorted(counted.items()):
        operator, _, why = name.rpartition(SEPARATOR)
        found.setdefault(operator, {})[why] = count
    return found
