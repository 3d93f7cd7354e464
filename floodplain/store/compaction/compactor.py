"""Executing a compaction: read, merge, write, and offer the result to the log."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from floodplain.store.compaction.budget import Budget
from floodplain.store.compaction.policy import Proposal
from floodplain.store.read import scan
from floodplain.store.read.snapshot import epoch_rules
from floodplain.store.rows import layout
from floodplain.store.rows.delta import sort_rows
from floodplain.store.rows.resolve import Rules
from floodplain.store.run.lookup_keys import Source
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.run.writer import RunBuilder
from floodplain.store.write.task_writer import conflict_before_damage, keep, reopen, run_options, write_object
from floodplain.tiers import paths
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.log.requirements import Requirement, RequireNoRestore, RequireRuns, RequireSchema, RequireStart
from floodplain.versions.records.edit import ReplaceRuns, RunRef
from floodplain.versions.records.groups import intersect, size
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema

_HELD_WINDOWS = 4
"""Of what a compaction writes, before it waits on the local disk."""


class Compacted(msgspec.Struct, frozen=True):
    """What one step of a compaction did."""

    table: str
    runs: int
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int


Announce: TypeAlias = Callable[[Sequence[RunRef]], object]
"""Told of runs that are written and about to be committed. Those that will read them can fetch them before it returns."""


def announce_to_nobody(runs: Sequence[RunRef]) -> None:
    """Whoever reads them fetches them then."""


def compact(
    history: History,
    open_runs: OpenRuns,
    proposal: Proposal,
    manifest: Manifest,
    budget: Budget | None = None,
    announce: Announce = announce_to_nobody,
) -> Compacted:
    """Carry out ``proposal``, which was made for ``manifest``. ``budget``: without one, as fast as it can.

    Needs no lease and never blocks an epoch. Raises ``Conflict`` if the runs were replaced meanwhile; then nothing changed
    and what was written is garbage.
    """
    schema = manifest.schema(proposal.table)
    assert schema is not None
    budget = budget or Budget(None, history.clock)
    requirements: list[Requirement] = [
        *RequireRuns.of(proposal.runs, proposal.groups),
        RequireStart(manifest.position),
        RequireNoRestore(manifest.position),
        RequireSchema(schema.table, schema.id),
    ]
    with conflict_before_damage(history, requirements):
        rows = merged(open_runs, proposal, manifest, schema, history.settings.window_bytes, budget)
        added = written(history, rows, proposal, manifest, schema, budget)
        reopen(added, manifest, open_runs, history.blobs)
    if added:
        announce(added)
    update = ReplaceRuns(proposal.table, proposal.groups, tuple(run.id for run in proposal.runs), added)
    commit(history, [update], requirements)
    maybe_checkpoint(history)
    return Compacted(
        table=schema.table,
        runs=len(proposal.runs),
        rows_before=sum(run.rows for run in proposal.runs),
        rows_after=sum(run.rows for run in added),
        bytes_before=proposal.size_bytes,
        bytes_after=sum(run.length for run in added),
    )


def merged(
    open_runs: OpenRuns,
    proposal: Proposal,
    manifest: Manifest,
    schema: TableSchema,
    window_bytes: int,
    budget: Budget | None = None,
) -> Iterator[pa.Table]:
    """What the runs hold for the key groups, each entry once, in run order, a window at a time.

    All of it is verified anew: what a compaction writes has checksums of its own, which would make damage look good.
    """
    sources = _within(open_runs.afresh().sources_of(proposal.runs, manifest), proposal, manifest.key_groups)
    bottom = _bottom(proposal, manifest)
    rules = _rules(proposal, manifest, schema)
    windows = list(scan.plan(sources, schema, proposal.groups, manifest.key_groups, window_bytes))
    for window in windows:
        if budget is not None:
            budget.spend(proposal.size_bytes // len(windows))
        rows = scan.resolved(window, sources, schema, rules, bottom=bottom)
        if len(rows):
            yield sort_rows(schema, rows, manifest.key_groups)


def _rules(proposal: Proposal, manifest: Manifest, schema: TableSchema) -> Rules:
    """What has ended by now may go, unless a newer run that stays has operands.

    They fold onto what had not ended when they were written. Operands that commit later are written later than now.
    """
    newest = max(run.high for run in proposal.runs)
    others = (run for run in manifest.runs[proposal.table] if run.merges and run.high > newest)
    if any(intersect(run.groups, proposal.groups) for run in others):
        return Rules(layout.BEGINNING, keep_unfolded=True)
    return epoch_rules(manifest, schema, keep_unfolded=True)


def _within(sources: Sequence[Source], proposal: Proposal, key_groups: int) -> list[Source]:
    """The sources cut down to the key groups of the proposal."""
    inside = np.zeros(key_groups, bool)
    for low, high in proposal.groups:
        inside[low:high] = True
    return [Source(source.reader, source.schema, source.member & inside) for source in sources]


def _bottom(proposal: Proposal, manifest: Manifest) -> np.ndarray:
    """Per key group, whether no run that stays is older than those merged.

    Only there may deletes vanish: the manifest was read before the merge, and a run that commits later holds a later epoch.
    """
    bottom = np.ones(manifest.key_groups, bool)
    merged = {run.id for run in proposal.runs}
    oldest = min(run.high for run in proposal.runs)
    for run in manifest.runs[proposal.table]:
        if run.id not in merged and run.high <= oldest:
            for low, high in intersect(run.groups, proposal.groups):
                bottom[low:high] = False
    return bottom


def written(
    history: History,
    pieces: Iterable[pa.Table],
    proposal: Proposal,
    manifest: Manifest,
    schema: TableSchema,
    budget: Budget | None = None,
) -> tuple[RunRef, ...]:
    """These rows, in run order, as a run as recent as those of the proposal, stored; nothing refers to it yet."""
    options = run_options(history.settings, history.blobs, manifest.store, manifest.key_groups)
    low, high = min(run.low for run in proposal.runs), max(run.high for run in proposal.runs)
    builder = RunBuilder(schema, layout.physical(schema), options, _HELD_WINDOWS * history.settings.window_bytes)
    for rows in pieces:
        builder.add(rows)
    if not builder.rows:
        return ()
    run = builder.finish(low, high, manifest.epoch)
    if budget is not None:
        budget.spend(len(run.data))
    name = paths.run(manifest.position, f"compact-{history.randomness.nonce()}", str(size(proposal.groups)))
    refs = write_object([run], name, history.blobs, history.settings, history.clock, history.randomness)
    keep([run], manifest.store, history.blobs)
    return refs
