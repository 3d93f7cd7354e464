"""Totals of a `floodplain compact`, so that a watch needs bounded memory however long it runs."""

import msgspec

from floodplain.store.compaction.compactor import Compacted


class CompactionTotals(msgspec.Struct):
    steps: int = 0
    runs_merged: int = 0
    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    tables: dict[str, int] = {}
    """Table → steps."""
    interrupted: bool = False

    def add(self, step: Compacted) -> None:
        self.steps += 1
        self.runs_merged += step.runs
        self.rows_before += step.rows_before
        self.rows_after += step.rows_after
        self.bytes_before += step.bytes_before
        self.bytes_after += step.bytes_after
        self.tables[step.table] = self.tables.get(step.table, 0) + 1
