"""The result of `floodplain inspect`: gathered from the newest manifest and a listing, without reading any run."""

from typing import Any, Literal

import msgspec

from floodplain.store.rows import merge_functions
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.redact import without_credentials
from floodplain.versions.records.control import ControlRecord
from floodplain.versions.records.edit import GroupRanges, RunRef
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import Field, TableSchema, value_from_bytes
from floodplain.versions.records.user_names import UserNames

KINDS = {
    "format": paths.FORMAT,
    "log": paths.LOG,
    "checkpoints": paths.MANIFESTS,
    "runs": paths.RUNS,
    "seen": paths.SEEN,
    "pins": paths.PINS,
}


class ColumnInfo(msgspec.Struct, frozen=True):
    name: str
    role: Literal["key", "subkey", "value"]
    type: str
    default: str | None
    merge: str
    merge_known: bool
    """Whether this process has the merge function: built in, or registered by an imported module."""
    ttl_ms: int


class RunInfo(msgspec.Struct, frozen=True):
    object: str
    first_epoch: int
    last_epoch: int
    rows: int
    size_bytes: int
    key_groups: int
    group_ranges: GroupRanges
    deletes: bool
    merges: bool


class TableInfo(msgspec.Struct, frozen=True):
    name: str
    """With the state as its user calls it."""
    stored_as: str
    """In the log."""
    shape: str
    schema_id: int
    ttl_ms: int
    ttl_clock: str
    columns: tuple[ColumnInfo, ...]
    rows: int
    """Physical rows in runs: all versions of an entry count, and so do tombstones."""
    size_bytes: int
    runs: tuple[RunInfo, ...]


class EpochInfo(msgspec.Struct, frozen=True):
    epoch: int
    at_ms: int
    position: int
    tags: tuple[str, ...]


class OperatorInfo(msgspec.Struct, frozen=True):
    """The definition of an operator, as the log records it."""

    name: str
    kind: str
    facts: tuple[str, ...]
    states: dict[str, str]
    slots: int | None = None
    """None before the first epoch."""


class ChangeInfo(msgspec.Struct, frozen=True):
    """A migration of the state when a changed job was started. Rolling back to ``epoch`` undoes it."""

    epoch: int
    at_ms: int
    what: str


class ControlInfo(msgspec.Struct, frozen=True):
    """A run of a control operation. ``decision``: as JSON; empty if it is too large for the log."""

    epoch: int
    at_ms: int
    name: str
    run: str
    operator: str
    kind: str
    decision: str


class LeaseInfo(msgspec.Struct, frozen=True):
    owner: str
    token: int
    expires_ms: int
    held: bool


class KindInfo(msgspec.Struct, frozen=True):
    objects: int
    size_bytes: int


class TierInfo(msgspec.Struct, frozen=True):
    """One tier. ``live_bytes``: size of the runs of the newest epoch; other runs belong to past epochs, or are garbage."""

    tier: str
    url: str
    objects: int
    size_bytes: int
    live_bytes: int
    kinds: dict[str, KindInfo]


class LogInfo(msgspec.Struct, frozen=True):
    position: int
    """The position of the newest edit."""
    oldest: int | None
    """The position of the oldest edit that is still stored."""
    checkpoints: tuple[int, ...]
    horizon: int


class Inspection(msgspec.Struct, frozen=True):
    location: str
    store: str
    created_ms: int
    key_groups: int
    epoch: int
    published: int
    log: LogInfo
    lease: LeaseInfo | None
    watermarks: dict[str, int]
    source: dict[str, Any]
    tags: dict[str, int]
    epochs: tuple[EpochInfo, ...]
    operators: tuple[OperatorInfo, ...]
    changes: tuple[ChangeInfo, ...]
    controls: tuple[ControlInfo, ...]
    tables: tuple[TableInfo, ...]
    tiers: tuple[TierInfo, ...]


def inspect_store(location: str, store: Store) -> Inspection:
    head, history, names = store.head, store.history, UserNames(store.head.definitions)
    sizes = {kind: {info.name: info.size_bytes for info in history.blobs.list(prefix)} for kind, prefix in KINDS.items()}
    return Inspection(
        location=without_credentials(location),
        store=head.store,
        created_ms=history.format.created_ms,
        key_groups=head.key_groups,
        epoch=head.epoch,
        published=head.published,
        log=_log(head, sizes),
        lease=_lease(head, history.clock.now_ms()),
        watermarks=dict(sorted(head.watermarks.items())),
        source={"query_id": head.source.query_id, "batch_id": head.source.batch_id} if head.source.query_id else {},
        tags=dict(sorted(head.tags.items())),
        epochs=tuple(EpochInfo(mark.epoch, mark.at_ms, mark.position, _tags(head, mark.epoch)) for mark in head.epochs),
        operators=tuple(_operator(head, name) for name in sorted(head.definitions)),
        changes=tuple(ChangeInfo(change.epoch, change.at_ms, change.what) for change in head.changes),
        controls=tuple(map(_control, head.controls)),
        tables=tuple(
            _table(names.table(name), names.schema(versions[-1]), head.runs.get(name, ()))
            for name, versions in sorted(head.schemas.items())
        ),
        tiers=(_tier(store, head, sizes),),
    )


def _operator(head: Manifest, name: str) -> OperatorInfo:
    definition, assignment = head.definitions[name], head.assignment_of(name)
    states = {state: declared.told for state, declared in definition.states.items()}
    if definition.spark is not None:
        states |= {variable.name: variable.told for variable in definition.spark.variables.values()}
    slots = None if assignment is None else assignment.slots
    return OperatorInfo(name, definition.kind, tuple(definition.facts), states, slots)


def _control(record: ControlRecord) -> ControlInfo:
    note = record.note
    return ControlInfo(record.epoch, record.at_ms, note.name, note.run, note.operator, note.kind, note.decision.json)


def _tags(head: Manifest, epoch: int) -> tuple[str, ...]:
    return tuple(sorted(tag for tag, tagged in head.tags.items() if tagged == epoch))


def _log(head: Manifest, sizes: dict[str, dict[str, int]]) -> LogInfo:
    positions = [position for name in sizes["log"] if (position := paths.position_of(name)) is not None]
    checkpoints = [position for name in sizes["checkpoints"] if (position := paths.position_of(name)) is not None]
    return LogInfo(head.position, min(positions, default=None), tuple(sorted(checkpoints)), head.horizon)


def _lease(head: Manifest, now_ms: int) -> LeaseInfo | None:
    lease = head.lease
    return LeaseInfo(lease.owner, lease.token, lease.expires_ms, lease.expires_ms > now_ms) if lease.token else None


def _tier(store: Store, head: Manifest, sizes: dict[str, dict[str, int]]) -> TierInfo:
    kinds = {kind: KindInfo(len(files), sum(files.values())) for kind, files in sizes.items()}
    return TierInfo(
        tier=store.history.blobs.tier,
        url=store.history.blobs.url,
        objects=sum(kind.objects for kind in kinds.values()),
        size_bytes=sum(kind.size_bytes for kind in kinds.values()),
        live_bytes=sum(run.length for runs in head.runs.values() for run in runs),
        kinds=kinds,
    )


def _table(name: str, schema: TableSchema, runs: tuple[RunRef, ...]) -> TableInfo:
    roles: dict[Literal["key", "subkey", "value"], tuple[Field, ...]] = {
        "key": schema.keys,
        "subkey": schema.subkeys,
        "value": schema.values,
    }
    return TableInfo(
        name=name,
        stored_as=schema.table,
        shape=schema.shape,
        schema_id=schema.id,
        ttl_ms=schema.ttl_ms,
        ttl_clock=schema.ttl_clock,
        columns=tuple(_column(role, field) for role, fields in roles.items() for field in fields),
        rows=sum(run.rows for run in runs),
        size_bytes=sum(run.length for run in runs),
        runs=tuple(_run(run) for run in runs),
    )


def _column(role: Literal["key", "subkey", "value"], field: Field) -> ColumnInfo:
    default = str(value_from_bytes(field.default).as_py()) if field.default else None
    known = not field.merge or merge_functions.find(field.merge) is not None
    return ColumnInfo(field.name, role, str(field.arrow), default, field.merge, known, field.ttl_ms)


def _run(run: RunRef) -> RunInfo:
    return RunInfo(
        object=run.object,
        first_epoch=run.low,
        last_epoch=run.high,
        rows=run.rows,
        size_bytes=run.length,
        key_groups=sum(high - low for low, high in run.groups),
        group_ranges=run.groups,
        deletes=run.deletes,
        merges=run.merges,
    )
