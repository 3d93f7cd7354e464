"""Rollback: one edit commits a new epoch with the content of a retained one. A rollback can be rolled back.

Definitions go on: a table that has changed since gets one more version, equal to the one it had. So no id of a column, or of a
field inside one, ever means two things, and epochs on both sides of the edit can be compared.
"""

from collections.abc import Iterable, Mapping

import msgspec

from floodplain.errors import BadInput, Conflict, SnapshotExpired
from floodplain.store.rows.widening import continued
from floodplain.store.verify import opened
from floodplain.store.write.task_writer import conflict_before_damage
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.log.requirements import RequireEpoch, Requirement, RequireRetained, RequireSchema
from floodplain.versions.records import seen
from floodplain.versions.records.edit import Content, RestoreEpoch, RunRef
from floodplain.versions.records.manifest import Manifest, content_of
from floodplain.versions.records.schema import TableSchema, same_definition
from floodplain.versions.records.user_names import UserNames


class TableRestored(msgspec.Struct, frozen=True):
    """What becomes of a table."""

    name: str
    runs_before: int
    runs_after: int
    rows_before: int
    """In runs: rows written more than once, and deletes, count as often as they stand there."""
    rows_after: int
    redefined: bool = False
    """Whether its columns change."""
    dropped: bool = False
    """Whether it goes, because the restored epoch did not have it."""


class RolledBack(msgspec.Struct, frozen=True):
    """What a rollback to an epoch changes."""

    restored: int
    """The epoch whose content was restored."""
    epoch: int
    """The new epoch that has this content."""
    before: int
    """The last epoch before the rollback: a rollback to it undoes this one."""
    restored_at_ms: int
    """When the restored epoch was committed."""
    batch_before: int
    batch_after: int
    """The last batch of the input that is in the state; -1 for none."""
    watermarks_before: dict[str, int]
    watermarks_after: dict[str, int]
    tables: tuple[TableRestored, ...]
    """The tables that change."""
    published: int
    """The last epoch whose output is published. It stays published."""
    unpublished: tuple[str, ...] = ()
    """Staged output of the last epoch that is discarded."""
    dry_run: bool = False


def planned(history: History, epoch: int) -> RolledBack:
    """A dry run: what a rollback to ``epoch`` would change, after the same checks."""
    head = history.refresh()
    past = _past(history, epoch)
    check_readable(history, past)
    return _summary(head, past, _content(head, past), dry_run=True)


def roll_back(history: History, epoch: int, token: int, *, drop_output: bool = False) -> RolledBack:
    """Commit an epoch with the content of ``epoch``, under the lease of ``token``.

    Raises ``SnapshotExpired`` if it is not retained, ``Corrupt`` if some of its files are not what they should be, and
    ``BadInput`` if output of the last epoch is not published; ``drop_output`` gives that up.
    """
    head = history.refresh()
    past = _past(history, epoch)
    if unpublished(head) and not drop_output:
        raise BadInput(
            f"epoch {head.epoch} has output that was not published before the last stop ({len(head.outputs)} files): start the "
            "pipeline once more, which publishes it, or give it up with drop_output (--drop-output)"
        )
    requirements: list[Requirement] = [RequireEpoch(head.epoch), RequireRetained(epoch)]
    requirements += [RequireSchema(table, versions[-1].id) for table, versions in head.schemas.items()]
    content = _content(head, past)
    try:
        with conflict_before_damage(history, requirements):
            check_readable(history, past)
        update = RestoreEpoch(head.epoch + 1, epoch, past.chain, content)
        commit(history, [update], requirements, token=token)
    except Conflict as conflict:
        if history.refresh().mark(epoch) is None:
            raise SnapshotExpired(f"cannot go back to epoch {epoch}: {conflict}") from conflict
        raise
    maybe_checkpoint(history)
    return _summary(head, past, content, dry_run=False)


def _past(history: History, epoch: int) -> Manifest:
    if epoch == history.head.epoch:
        raise BadInput(f"epoch {epoch} is the newest: there is nothing to go back from")
    return history.at(epoch)


def unpublished(head: Manifest) -> tuple[str, ...]:
    """Staged output that nobody has published, as far as the log tells."""
    return head.outputs if head.published < head.epoch else ()


def check_readable(history: History, manifest: Manifest) -> None:
    """Every object is there and has its size, every run opens, and what the input was is whole. Raises ``Corrupt`` that names the
    file."""
    for runs in manifest.runs.values():
        for run in runs:
            opened(history, run, manifest)
    seen.load_all(history.blobs, manifest)


def _content(head: Manifest, past: Manifest) -> Content:
    schemas = {table: _going_on(head.schemas.get(table, ()), versions) for table, versions in past.schemas.items()}
    return msgspec.structs.replace(content_of(past), schemas=schemas)


def _going_on(now: tuple[TableSchema, ...], then: tuple[TableSchema, ...]) -> tuple[TableSchema, ...]:
    """The versions of a table that had ``now`` and is again as the last of ``then`` says."""
    if now[: len(then)] != then:
        # Dropped since, or made anew: other versions, which no run of then was written under.
        return then
    if same_definition(now[-1], then[-1]):
        return now
    last, since = then[-1], [field for schema in now for field in schema.fields]
    keys, subkeys, values = (
        tuple(continued(field, since) for field in fields) for fields in (last.keys, last.subkeys, last.values)
    )
    again = msgspec.structs.replace(
        last, id=now[-1].id + 1, keys=keys, subkeys=subkeys, values=values, next_field=now[-1].next_field
    )
    return (*now, again)


def _summary(head: Manifest, past: Manifest, content: Content, *, dry_run: bool) -> RolledBack:
    names = sorted({*head.schemas, *past.schemas})
    tables = [_change(name, head, past) for name in names if _differs(name, head, past)]
    return RolledBack(
        restored=past.epoch,
        epoch=head.epoch + 1,
        before=head.epoch,
        restored_at_ms=past.at_ms,
        batch_before=head.source.batch_id,
        batch_after=content.source.batch_id,
        watermarks_before=dict(head.watermarks),
        watermarks_after=dict(content.watermarks),
        tables=tuple(tables),
        published=head.published,
        unpublished=unpublished(head),
        dry_run=dry_run,
    )


def _differs(name: str, head: Manifest, past: Manifest) -> bool:
    return head.schema(name) != past.schema(name) or head.runs.get(name, ()) != past.runs.get(name, ())


def _change(name: str, head: Manifest, past: Manifest) -> TableRestored:
    before, after = (_runs(manifest.runs, name) for manifest in (head, past))
    now, then = head.schema(name), past.schema(name)
    return TableRestored(
        name=UserNames({**past.definitions, **head.definitions}).table(name),
        runs_before=len(before),
        runs_after=len(after),
        rows_before=sum(run.rows for run in before),
        rows_after=sum(run.rows for run in after),
        redefined=now is not None and then is not None and _columns(now) != _columns(then),
        dropped=then is None,
    )


def _columns(schema: TableSchema) -> tuple[object, ...]:
    fields = [(field.name, field.type, field.default, field.merge, field.ttl_ms) for field in schema.fields]
    return schema.shape, schema.ttl_ms, schema.ttl_clock, fields


def _runs(runs: Mapping[str, Iterable[RunRef]], name: str) -> list[RunRef]:
    return list(runs.get(name, ()))
