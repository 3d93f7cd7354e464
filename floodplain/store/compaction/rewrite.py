"""Making all values of a column anew: a compaction of the whole table into runs of another schema."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.store.compaction import policy
from floodplain.store.compaction.compactor import merged, written
from floodplain.store.compaction.policy import Proposal
from floodplain.store.rows import layout
from floodplain.store.rows.evolution import adapt
from floodplain.store.rows.layout import EXPIRES, MERGE, OP, one_array
from floodplain.store.run.open_runs import OpenRuns
from floodplain.versions.log.history import History
from floodplain.versions.records.edit import ReplaceRuns
from floodplain.versions.records.groups import intersect
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema, fields_named

Remake: TypeAlias = Callable[[pa.Array], pa.Array]
"""Old values → new ones, of the type of the new column."""

STEP_BYTES = 256 << 20
"""Stored bytes of a run that it writes, at most about; memory is bounded by ``StoreSettings.window_bytes``."""


def rewrite(
    history: History, open_runs: OpenRuns, manifest: Manifest, after: TableSchema, columns: Mapping[str, tuple[str, Remake]]
) -> list[ReplaceRuns]:
    """Runs in place of all that the table has in ``manifest``, with the values of some columns made anew.

    ``after`` is the version of its schema that follows the newest. ``columns``: its name now → its name before, and how. Writes
    runs that nothing refers to before the updates are committed.
    """
    before = manifest.schema(after.table)
    assert before is not None
    steps = []
    for band in policy.bands(manifest, after.table, STEP_BYTES):
        runs = tuple(run for run in manifest.runs.get(after.table, ()) if intersect(run.groups, band))
        if not runs:
            continue
        proposal = Proposal(after.table, band, runs, 0)
        now_ms = manifest.watermarks.get(after.ttl_clock, 0)
        pieces = merged(open_runs, proposal, manifest, before, history.settings.window_bytes)
        remade = (_remade(_folded(rows, after.table), before, after, columns, now_ms) for rows in pieces)
        added = written(history, remade, proposal, manifest, after)
        steps.append(ReplaceRuns(after.table, band, tuple(run.id for run in runs), added))
    return steps


def _folded(rows: pa.Table, table: str) -> pa.Table:
    if (layout.numbers(rows, OP) == MERGE).any():
        raise BadInput(f"table {table} holds operands of a merge that this process does not have: import the code that has it")
    return rows


def _remade(
    rows: pa.Table, before: TableSchema, after: TableSchema, columns: Mapping[str, tuple[str, Remake]], now_ms: int
) -> pa.Table:
    made: dict[str, pa.Array | pa.ChunkedArray] = {}
    put = layout.numbers(rows, OP) == 0
    named, names = fields_named(before, [was for was, _ in columns.values()]), fields_named(after, columns)
    for (_, remake), old, new in zip(columns.values(), named, names, strict=True):
        values = remake(one_array(rows.column(layout.column(old))))
        kept = np.where(put, np.arange(len(rows)), len(rows))
        chosen = pa.concat_arrays([values, pa.nulls(1, values.type)]).take(pa.array(kept))
        made[layout.column(new)] = chosen
        if new.ttl_ms:
            ends = rows.column(layout.expires_column(old)) if old.ttl_ms else None
            made[layout.expires_column(new)] = _ends(ends, len(rows), new.ttl_ms - old.ttl_ms, now_ms + new.ttl_ms)
    if after.ttl_ms != before.ttl_ms and after.ttl_ms:
        ends = rows.column(EXPIRES) if before.ttl_ms else None
        made[EXPIRES] = _ends(ends, len(rows), after.ttl_ms - before.ttl_ms, now_ms + after.ttl_ms)
    return layout.with_columns(adapt(rows, before, after), made)


def _ends(before: pa.ChunkedArray | None, rows: int, longer_ms: int, new_ms: int) -> pa.Array | pa.ChunkedArray:
    """Ends as if the time to live had always been what it is: moved by as much, or counted from now if there were none."""
    return pa.repeat(pa.scalar(new_ms, pa.int64()), rows) if before is None else pc.add(before, longer_ms)
