"""The manifest: the fold of all edits up to a position. ``apply`` is the only way it changes."""

from collections.abc import Iterable, Iterator

import msgspec

from floodplain.host import Process
from floodplain.tier_use import Uses, uses_sum
from floodplain.tiers import paths
from floodplain.versions.records import names, sources
from floodplain.versions.records.ages import Ages, aged
from floodplain.versions.records.control import REMEMBERED, ControlRecord, NoteControl
from floodplain.versions.records.definition import Definition, DefinitionChange
from floodplain.versions.records.edit import (
    AdvanceHorizon,
    AdvancePublished,
    AnswerRescale,
    Assignment,
    AssignOperators,
    CommitEpoch,
    Content,
    DropDefinition,
    DropEpochs,
    DropTable,
    DropTag,
    Edit,
    NoteChange,
    PutDefinition,
    PutSchema,
    ReleaseLease,
    RenameTable,
    ReplaceRuns,
    RequestRescale,
    RestoreEpoch,
    RunRef,
    SetAssignment,
    SetTag,
    SourcePosition,
    TakeLease,
    Update,
)
from floodplain.versions.records.groups import subtract
from floodplain.versions.records.schema import TableSchema
from floodplain.versions.records.vouched import FileSum

REMEMBERED_EDITS = 256
REMEMBERED_CHANGES = 64


class BrokenHistory(Exception):
    """An edit that contradicts the manifest it should apply to. Recovery turns it into ``Corrupt`` with the file's name."""


class EpochMark(msgspec.Struct, frozen=True):
    """A retained epoch and where in the log its manifest ends."""

    epoch: int
    position: int
    at_ms: int
    chain: str
    """Checksum of the edit there: tells its manifest from a stray one at the same position."""


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    token: int = 0
    owner: str = ""
    expires_ms: int = 0
    """0 once released."""
    holder: Process | None = None
    length_ms: int = 0
    """How long it was to last when it was taken or renewed, by one clock: another clock may be off from the holder's by any time.
    0 if that is not known."""


class RescaleRequest(msgspec.Struct, frozen=True):
    """One that the query has not answered yet."""

    position: int
    at_ms: int
    slots: int
    operators: dict[str, int]


class Manifest(msgspec.Struct, frozen=True):
    store: str
    key_groups: int
    position: int = 0
    chain: str = ""
    """Checksum of the edit at ``position``."""
    at_ms: int = 0
    """When that edit was made."""
    epoch: int = 0
    lease: Lease = Lease()
    schemas: dict[str, tuple[TableSchema, ...]] = {}
    """Table → its versions, oldest first; runs written under an old one are read under the newest."""
    runs: dict[str, tuple[RunRef, ...]] = {}
    """Table → its live runs, newest interval first."""
    assignment: Assignment | None = None
    """Of operators that have none of their own."""
    assignments: dict[str, Assignment] = {}
    """Operator → its own."""
    rescale: RescaleRequest | None = None
    """The newest request that the query has not answered."""
    rescaled: AnswerRescale | None = None
    """Its last answer."""
    source: SourcePosition = SourcePosition()
    watermarks: dict[str, int] = {}
    counts: dict[str, int] = {}
    outputs: tuple[str, ...] = ()
    published: int = 0
    horizon: int = 0
    tags: dict[str, int] = {}
    epochs: tuple[EpochMark, ...] = ()
    """Retained epochs, oldest first; the newest is always among them."""
    nonces: tuple[tuple[int, str], ...] = ()
    """The last few (position, nonce): lets a slow writer learn that its edit was counted."""
    definitions: dict[str, Definition] = {}
    """Operator → what it was told to do. A state of format 1 has none."""
    changes: tuple[DefinitionChange, ...] = ()
    """What changed jobs did to the state at their start: the last few, oldest first."""
    restored: int = 0
    """Position of the last edit that went back to an epoch; 0 for none."""
    left: tuple[SourcePosition, ...] = ()
    """Places in the input that the state went back from, until it has read on: where the engine's own record may still be."""
    sums: tuple[FileSum, ...] = ()
    """What vouches for each of ``outputs``; empty where an edit of format 1 names them."""
    ages: Ages = ()
    """When some of the positions above the horizon were reached: tells a collection how far that may move."""
    used: Uses = {}
    """What tiers were asked for since the state was made, as far as epochs tell: a rollback does not undo it."""
    used_epochs: int = 0
    """How many epochs tell of it."""
    inline: tuple[str, ...] = ()
    """Those of ``outputs`` that the edit of the last epoch holds."""
    fenced: int = 0
    """From this position on the log is trimmed only behind fences; 0 as long as all edits are of earlier releases."""
    controls: tuple[ControlRecord, ...] = ()
    """The last runs of control operations, oldest first."""

    def schema(self, table: str) -> TableSchema | None:
        versions = self.schemas.get(table)
        return versions[-1] if versions else None

    def assignment_of(self, operator: str) -> Assignment | None:
        return self.assignments.get(operator, self.assignment)

    def mark(self, epoch: int) -> EpochMark | None:
        return next((mark for mark in self.epochs if mark.epoch == epoch), None)

    def objects(self) -> set[str]:
        """The names of all objects this manifest needs: those of runs, and of seen files."""
        return {run.object for runs in self.runs.values() for run in runs}.union(ref.object for ref in self.source.seen)

    def stored_outputs(self) -> tuple[str, ...]:
        """Those of ``outputs`` that are stored."""
        return tuple(name for name in self.outputs if name not in self.inline)

    def strays(self) -> Iterator[names.Stray]:
        """Names in it that Floodplain cannot have written."""
        yield from names.in_runs(run for runs in self.runs.values() for run in runs)
        yield from names.in_outputs(self.outputs)
        for source in (self.source, *self.left):
            yield from names.in_source(source)
        yield from names.in_words("table", self.schemas)
        yield from names.in_words("tag", self.tags)


def apply(manifest: Manifest, edit: Edit, checksum: str) -> Manifest:
    """The manifest after ``edit``, whose encoded bytes have ``checksum``. Pure; raises ``BrokenHistory``."""
    _require(edit.store == manifest.store, f"store {manifest.store}", f"store {edit.store}")
    _require(edit.position == manifest.position + 1, f"position {manifest.position + 1}", f"position {edit.position}")
    _require(edit.previous == manifest.chain, f"predecessor {manifest.chain}", f"predecessor {edit.previous}")
    lease = manifest.lease
    _require(edit.token in (0, lease.token), f"an edit under lease {lease.token}", f"one under lease {edit.token}")
    if edit.token and lease.expires_ms and edit.lease_expires_ms:
        length_ms = max(edit.lease_expires_ms - edit.at_ms, 0)
        lease = msgspec.structs.replace(lease, expires_ms=edit.lease_expires_ms, length_ms=length_ms)
        manifest = msgspec.structs.replace(manifest, lease=lease)
    for update in edit.updates:
        for expected, actual in names.in_update(update):
            raise BrokenHistory(expected, actual)
        manifest = _apply_update(manifest, update, edit, checksum)
    nonces = (*manifest.nonces, (edit.position, edit.nonce))[-REMEMBERED_EDITS:]
    ages = aged(manifest.ages, edit.position, edit.at_ms, manifest.horizon)
    fenced = manifest.fenced or (edit.position if edit.fences else 0)
    return msgspec.structs.replace(
        manifest, position=edit.position, chain=checksum, at_ms=edit.at_ms, nonces=nonces, ages=ages, fenced=fenced
    )


def preview(manifest: Manifest, updates: Iterable[DropTable | RenameTable | DropDefinition]) -> Manifest:
    """What these would leave of its tables and definitions. Raises ``BrokenHistory`` if they do not fit."""
    for update in updates:
        manifest = _define(manifest, update, 0) if isinstance(update, DropDefinition) else _change_table(manifest, update)
    return manifest


def _require(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise BrokenHistory(expected, found)


def _apply_update(manifest: Manifest, update: Update, edit: Edit, checksum: str) -> Manifest:
    change = msgspec.structs.replace
    match update:
        case CommitEpoch() | RestoreEpoch():
            return _next_epoch(manifest, update, edit, checksum)
        case PutSchema() | DropTable() | RenameTable() | ReplaceRuns():
            return _change_table(manifest, update)
        case PutDefinition() | DropDefinition() | NoteChange():
            return _define(manifest, update, edit.at_ms)
        case NoteControl():
            return change(
                manifest, controls=(*manifest.controls, ControlRecord(manifest.epoch, edit.at_ms, update))[-REMEMBERED:]
            )
        case TakeLease(token, owner, expires_ms, holder):
            _require(token == manifest.lease.token + 1, f"lease token {manifest.lease.token + 1}", f"{token}")
            return change(manifest, lease=Lease(token, owner, expires_ms, holder, max(expires_ms - edit.at_ms, 0)))
        case ReleaseLease(token):
            _require(token == manifest.lease.token, f"lease token {manifest.lease.token}", f"{token}")
            return change(manifest, lease=change(manifest.lease, expires_ms=0))
        case SetAssignment() | AssignOperators() | RequestRescale() | AnswerRescale():
            return _assign(manifest, update, edit)
        case SetTag(name, epoch):
            _require(manifest.mark(epoch) is not None, "a tag on a retained epoch", f"epoch {epoch}")
            return change(manifest, tags={**manifest.tags, name: epoch})
        case DropTag(name):
            return change(manifest, tags={tag: epoch for tag, epoch in manifest.tags.items() if tag != name})
        case _:
            return _advance(manifest, update)


def _assign(manifest: Manifest, update: SetAssignment | AssignOperators | RequestRescale | AnswerRescale, edit: Edit) -> Manifest:
    change = msgspec.structs.replace
    match update:
        case SetAssignment(assignment):
            return change(manifest, assignment=assignment, assignments={})
        case AssignOperators(assignments):
            return change(manifest, assignments=assignments)
        case RequestRescale(slots, operators):
            return change(manifest, rescale=RescaleRequest(edit.position, edit.at_ms, slots, operators))
        case AnswerRescale(request):
            # A newer request may have come while the query was about to answer this one: it goes on waiting.
            waiting = manifest.rescale if manifest.rescale is not None and manifest.rescale.position != request else None
            return change(manifest, rescale=waiting, rescaled=update)


def _advance(manifest: Manifest, update: Update) -> Manifest:
    change = msgspec.structs.replace
    match update:
        case DropEpochs(epochs):
            gone = set(epochs)
            _require(manifest.epoch not in gone, "the newest epoch kept", f"epoch {manifest.epoch} dropped")
            tagged = gone & set(manifest.tags.values())
            _require(not tagged, "tagged epochs kept", f"epochs {sorted(tagged)} dropped")
            return change(manifest, epochs=tuple(mark for mark in manifest.epochs if mark.epoch not in gone))
        case AdvanceHorizon(position):
            possible = manifest.horizon <= position <= manifest.position
            _require(possible, f"a horizon from {manifest.horizon} to {manifest.position}", f"{position}")
            return change(manifest, horizon=position)
        case AdvancePublished(epoch):
            _require(manifest.published <= epoch <= manifest.epoch, f"published from {manifest.published} up", f"{epoch}")
            return change(manifest, published=epoch)
        case _:
            raise BrokenHistory("a known update", type(update).__name__)


def _next_epoch(manifest: Manifest, update: CommitEpoch | RestoreEpoch, edit: Edit, checksum: str) -> Manifest:
    begins = isinstance(update, CommitEpoch) and update.begins and not manifest.epoch and update.epoch > 0
    _require(begins or update.epoch == manifest.epoch + 1, f"epoch {manifest.epoch + 1}", f"epoch {update.epoch}")
    after = _commit_epoch(manifest, update) if isinstance(update, CommitEpoch) else _restore_epoch(manifest, update, edit)
    mark = EpochMark(update.epoch, edit.position, edit.at_ms, checksum)
    return msgspec.structs.replace(after, epoch=update.epoch, epochs=(*manifest.epochs, mark))


def _commit_epoch(manifest: Manifest, update: CommitEpoch) -> Manifest:
    for name, watermark in update.watermarks.items():
        floor = manifest.watermarks.get(name, watermark)
        _require(watermark >= floor or name in update.set_back, f"watermark {name} from {floor} up", f"{watermark}")
    for name, count in update.counts.items():
        _require(count >= 0, f"a count {name} of 0 or more", f"{count}")
    outputs = len(update.outputs)
    stray = update.inline.keys() - set(update.outputs)
    _require(not stray, "inline files that are outputs", f"{sorted(stray)}")
    _require(len(update.sums) in (0, outputs), f"checksums of {outputs} outputs, or none", f"{len(update.sums)}")
    for ref in update.source.seen if update.source is not None else ():
        _require_reachable(manifest, ref.object)
    added: dict[str, list[RunRef]] = {}
    for run in update.runs:
        _require(run.table in manifest.schemas, "a run of a known table", run.table)
        _require_reachable(manifest, run.object)
        added.setdefault(run.table, []).append(run)
    return msgspec.structs.replace(
        manifest,
        runs={**manifest.runs, **{table: _with_added(manifest.runs.get(table, ()), runs) for table, runs in added.items()}},
        source=_advance_source(manifest.source, update.source),
        watermarks={**manifest.watermarks, **update.watermarks},
        counts=manifest.counts | {name: manifest.counts.get(name, 0) + count for name, count in update.counts.items()},
        outputs=update.outputs,
        sums=update.sums,
        inline=tuple(update.inline),
        left=manifest.left if _stands_still(manifest.source, update.source) else (),
        used=uses_sum(manifest.used, update.used),
        used_epochs=manifest.used_epochs + bool(update.used),
    )


def content_of(manifest: Manifest) -> Content:
    return Content(**{name: getattr(manifest, name) for name in Content.__struct_fields__})


def _restore_epoch(manifest: Manifest, update: RestoreEpoch, edit: Edit) -> Manifest:
    """Names no run for the first time (I8): the epoch it had them from is retained, so nothing has let go of them."""
    mark = manifest.mark(update.restored)
    _require(mark is not None and mark.chain == update.chain, "the content of a retained epoch", f"epoch {update.restored}")
    content = update.content
    for table, versions in content.schemas.items():
        named = [(schema.table, schema.id) for schema in versions]
        _require(named == [(table, n + 1) for n in range(len(named))] and bool(named), f"versions of {table}", f"{named}")
    for table, runs in content.runs.items():
        known = all(run.table == table and 1 <= run.schema_id <= len(content.schemas.get(table, ())) for run in runs)
        _require(known, "runs of known tables and versions", table)
    _require_ordered(content.source)
    place = msgspec.structs.replace(manifest.source, sources={}, seen=(), compacts={})
    left = manifest.left if place.batch_id < 0 or place in manifest.left else (*manifest.left, place)
    return msgspec.structs.replace(
        manifest,
        **{name: getattr(content, name) for name in Content.__struct_fields__},
        outputs=(),
        sums=(),
        inline=(),
        restored=edit.position,
        left=left,
    )


def _advance_source(before: SourcePosition, update: SourcePosition | None) -> SourcePosition:
    if update is None:
        return before
    after = sources.advanced(before, update)
    _require_ordered(after)
    return after


def _require_ordered(source: SourcePosition) -> None:
    for one, other in sources.overlaps(source.seen):
        _require(False, f"seen files of {other.source} behind entry {one.last}", f"entries {other.first} to {other.last}")


def _stands_still(before: SourcePosition, update: SourcePosition | None) -> bool:
    return update is None or (update.query_id, update.batch_id) == (before.query_id, before.batch_id)


def _change_table(manifest: Manifest, update: PutSchema | DropTable | RenameTable | ReplaceRuns) -> Manifest:
    match update:
        case PutSchema(schema):
            return _put_schema(manifest, schema)
        case DropTable(table):
            return _drop_table(manifest, table)
        case RenameTable(table, to):
            return _rename_table(manifest, table, to)
        case ReplaceRuns():
            return _replace_runs(manifest, update)


def _put_schema(manifest: Manifest, schema: TableSchema) -> Manifest:
    versions = manifest.schemas.get(schema.table, ())
    _require(schema.id == len(versions) + 1, f"schema {len(versions) + 1} of {schema.table}", f"schema {schema.id}")
    return msgspec.structs.replace(manifest, schemas={**manifest.schemas, schema.table: (*versions, schema)})


def _drop_table(manifest: Manifest, table: str) -> Manifest:
    _require(table in manifest.schemas, "a known table dropped", table)
    schemas = {name: versions for name, versions in manifest.schemas.items() if name != table}
    runs = {name: refs for name, refs in manifest.runs.items() if name != table}
    return msgspec.structs.replace(manifest, schemas=schemas, runs=runs)


def _rename_table(manifest: Manifest, table: str, to: str) -> Manifest:
    _require(table in manifest.schemas and to not in manifest.schemas, f"a known table renamed to a free name, not {to}", table)
    change = msgspec.structs.replace
    versions = tuple(change(schema, table=to) for schema in manifest.schemas[table])
    runs = tuple(change(run, table=to, written_as=run.written_as or table) for run in manifest.runs.get(table, ()))
    schemas = {name: known for name, known in manifest.schemas.items() if name != table}
    others = {name: known for name, known in manifest.runs.items() if name != table}
    return change(manifest, schemas={**schemas, to: versions}, runs={**others, to: runs} if runs else others)


def _define(manifest: Manifest, update: PutDefinition | DropDefinition | NoteChange, at_ms: int) -> Manifest:
    change = msgspec.structs.replace
    match update:
        case PutDefinition(operator, definition):
            return change(manifest, definitions={**manifest.definitions, operator: definition})
        case DropDefinition(operator):
            _require(operator in manifest.definitions, "a known definition dropped", operator)
            kept = {name: kept_definition for name, kept_definition in manifest.definitions.items() if name != operator}
            return change(manifest, definitions=kept)
        case NoteChange(what):
            noted = DefinitionChange(manifest.epoch, at_ms, what)
            return change(manifest, changes=(*manifest.changes, noted)[-REMEMBERED_CHANGES:])


def _replace_runs(manifest: Manifest, update: ReplaceRuns) -> Manifest:
    runs = manifest.runs.get(update.table, ())
    dropped = set(update.dropped)
    missing = dropped - {run.id for run in runs}
    _require(not missing, "replaced runs that are there", f"none called {', '.join(sorted(missing))}")
    for run in update.added:
        _require_reachable(manifest, run.object)
    kept = []
    for run in runs:
        groups = subtract(run.groups, update.groups) if run.id in dropped else run.groups
        if groups:
            kept.append(msgspec.structs.replace(run, groups=groups))
    return msgspec.structs.replace(manifest, runs={**manifest.runs, update.table: _newest_first((*kept, *update.added))})


def _require_reachable(manifest: Manifest, name: str) -> None:
    """What started at or below the horizon may be deleted by now (I8), so no edit can name it for the first time."""
    start = paths.start_of_run(name)
    _require(start is None or start > manifest.horizon, f"an object begun after the horizon {manifest.horizon}", name)


def _with_added(runs: tuple[RunRef, ...], added: list[RunRef]) -> tuple[RunRef, ...]:
    """Requires: ``runs`` come newest first."""
    first = _newest_first(added)
    return (*first, *runs) if not runs or first[-1].high > runs[0].high else _newest_first((*added, *runs))


def _newest_first(runs: Iterable[RunRef]) -> tuple[RunRef, ...]:
    return tuple(sorted(runs, key=lambda run: (-run.high, run.groups, run.id)))
