"""Names in records. A folder may come from elsewhere: what its files name is used only if it is a name as we make them."""

from collections.abc import Iterable, Iterator

from floodplain.errors import short
from floodplain.tiers import paths
from floodplain.versions.records.edit import (
    AssignOperators,
    CommitEpoch,
    DropTag,
    PutSchema,
    RenameTable,
    ReplaceRuns,
    RequestRescale,
    RestoreEpoch,
    RunRef,
    SetTag,
    SourcePosition,
    TakeLease,
    Update,
)

Stray = tuple[str, str]
"""What was expected and what was found."""


def in_update(update: Update) -> Iterator[Stray]:
    """The names in it that are none: nothing is read, written or deleted by them."""
    match update:
        case CommitEpoch():
            yield from in_runs(update.runs)
            yield from in_outputs(update.outputs)
            yield from in_source(update.source)
        case ReplaceRuns():
            yield from in_runs(update.added)
        case RestoreEpoch():
            yield from in_runs(run for runs in update.content.runs.values() for run in runs)
            yield from in_source(update.content.source)
            yield from in_words("table", update.content.schemas)
        case PutSchema(schema):
            yield from in_words("table", [schema.table])
        case RenameTable(_, to):
            yield from in_words("table", [to])
        case SetTag(name) | DropTag(name):
            yield from in_words("tag", [name])
        case AssignOperators(names) | RequestRescale(operators=names):
            yield from in_words("operator", names)
        case TakeLease():
            yield from in_words("owner", [update.owner])


def in_runs(runs: Iterable[RunRef]) -> Iterator[Stray]:
    for run in runs:
        if not paths.is_run(run.object):
            yield "the name of a run", short(run.object)


def in_outputs(outputs: Iterable[str]) -> Iterator[Stray]:
    for name in outputs:
        if not paths.is_staged(name):
            yield "the name of staged output", short(name)


def in_source(source: SourcePosition | None) -> Iterator[Stray]:
    for name in source.sources if source is not None else ():
        if not paths.is_source_note(name):
            yield "the name of a file that a source keeps", short(name)
    for name in source.compacts if source is not None else ():
        entry = paths.source_entry(name)
        if entry is None or not entry[2]:
            yield "the name of a file that replaces others of a source", short(name)
    for ref in source.seen if source is not None else ():
        if not paths.is_seen(ref.object):
            yield "the name of an object of seen files", short(ref.object)
        if paths.source_entry(f"{ref.source}/0") is None:
            yield "the name of the folder of a source", short(ref.source)


def in_words(what: str, names: Iterable[str]) -> Iterator[Stray]:
    for name in names:
        if not paths.is_name(name):
            yield f"the name of a {what}", short(name)
