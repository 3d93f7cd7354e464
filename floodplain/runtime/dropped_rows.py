"""Dropped rows, by operator and reason, as edits and manifests count them."""

from collections.abc import Mapping

from floodplain.operators.kernel.operator import DroppedRows
from floodplain.state.tables import SEPARATOR

INPUT = "input"
"""Stands for the pipeline's own input among the operators."""
RECORDED = ("late", "ignored")
"""Reasons that the log counts."""


def counts(dropped: Mapping[str, DroppedRows]) -> dict[str, int]:
    """For an edit, of rows by operator."""
    return {f"{name}{SEPARATOR}{reason}": count for reason in RECORDED for name, count in by_operator(dropped, reason).items()}


def by_operator(dropped: Mapping[str, DroppedRows], reason: str) -> dict[str, int]:
    """Operator → how many it dropped for this reason, if any."""
    counted: dict[str, int] = {name: getattr(rows, reason) for name, rows in dropped.items()}
    return {name: count for name, count in counted.items() if count}


def totals(counted: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Operator → reason → how many rows were dropped, of what stands in a manifest."""
    by_name: dict[str, dict[str, int]] = {}
    for name, count in sorted(counted.items()):
        operator, _, reason = name.rpartition(SEPARATOR)
        by_name.setdefault(operator, {})[reason] = count
    return by_name
