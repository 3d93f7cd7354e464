"""An epoch being written: deltas, then one commit, or nothing."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.run.writer import BuiltRun
from floodplain.store.write.task_writer import Report, TaskWriter, Ticket, conflict_before_damage, reopen, write_object
from floodplain.tier_use import Uses
from floodplain.tiers import paths
from floodplain.tiers.create import create_or_read
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.log.requirements import RequireEpoch, RequireLease, Requirement, RequireSchema, RequireStart
from floodplain.versions.records import seen
from floodplain.versions.records.edit import AdvancePublished, CommitEpoch, RunRef, SourcePosition, Update
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.sealing import Maker, sealed
from floodplain.versions.records.vouched import FileSum

MOST_TIME_MS = 1 << 62


class Epoch:
    """One transaction. Either ``commit`` returns, or nothing of it is ever seen.

    Write to it directly, or hand ``ticket`` to tasks elsewhere and commit their reports.
    """

    def __init__(
        self,
        history: History,
        open_runs: OpenRuns,
        token: int,
        watermarks: Mapping[str, int],
        *,
        set_back: bool = False,
        number: int | None = None,
    ) -> None:
        """``set_back``: watermarks may be earlier than they are. ``number``: of the first epoch, if that is not 1."""
        head = history.head
        self._before = head.epoch
        self._begins = number is not None
        self._set_back = set_back
        self._history = history
        self._open_runs = open_runs
        self._done = False
        self.ticket = Ticket(
            store=head.store,
            key_groups=head.key_groups,
            token=token,
            epoch=head.epoch + 1 if number is None else number,
            start=head.position,
            attempt=history.randomness.nonce(),
            now_ms={
                **head.watermarks,
                **{name: _checked_time(paths.checked_name("watermark", name), ms) for name, ms in watermarks.items()},
            },
            schemas={table: versions[-1] for table, versions in head.schemas.items()},
        )
        self._own = self.task("local", "0")

    @property
    def number(self) -> int:
        """The number that the epoch will have."""
        return self.ticket.epoch

    def task(self, operator: str, part: str) -> TaskWriter:
        """A writer for one task of this epoch, in this process."""
        history = self._history
        return TaskWriter(
            self.ticket, history.blobs, history.settings, history.clock, history.randomness, operator=operator, part=part
        )

    def put(self, table: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Put whole rows; a value column that is missing gets its default."""
        self._own.write(table, rows, "put")

    def merge(self, table: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Fold operands into columns that have a merge, without reading them first."""
        self._own.write(table, rows, "merge")

    def delete(self, table: str, keys: pa.Table | pa.RecordBatch) -> None:
        """Delete entries by key (and sub-key). Deleting what is not there is no error."""
        self._own.write(table, keys, "delete")

    def clear(self, table: str, keys: pa.Table | pa.RecordBatch) -> None:
        """Delete all entries of these keys, whatever their sub-keys."""
        self._own.write(table, keys, "clear")

    def commit(
        self,
        reports: Sequence[Report] = (),
        *,
        source: SourcePosition | None = None,
        watermarks: Mapping[str, int] | None = None,
        outputs: Sequence[str] = (),
        sums: Sequence[FileSum] = (),
        inline: Mapping[str, bytes] | None = None,
        counts: Mapping[str, int] | None = None,
        used: Uses | None = None,
        also: Sequence[Update] = (),
        requirements: Sequence[Requirement] = (),
        published: bool = False,
        checkpoint: bool = True,
    ) -> Manifest:
        """Make the epoch durable and visible, all at once.

        ``sums`` vouch for each of ``outputs``, in their order; without them these are used unchecked. ``inline``: those that are
        not stored. ``counts`` and ``used`` are added to those of the epochs before. ``also``: further updates, which need
        ``requirements``. ``published``: there is nothing for sinks in it. ``checkpoint``: write a manifest checkpoint if one is
        due; else the caller does, after what is urgent.

        Raises ``Fenced`` if another writer took over, ``Conflict`` if another epoch was committed meanwhile; then this
        epoch is lost and its files are garbage.
        """
        if self._done:
            raise BadInput(f"epoch {self.number} was committed or given up already: begin another")
        for name, watermark in (watermarks or {}).items():
            _checked_time(paths.checked_name("watermark", name), watermark)
        self._done = True
        head, ticket = self._history.head, self.ticket
        runs = self._place([*reports, self._own.finish()])
        needed: list[Requirement] = [RequireEpoch(self._before), RequireStart(ticket.start), *requirements]
        needed += [RequireSchema(table, ticket.schemas[table].id) for table in sorted({run.table for run in runs})]
        with conflict_before_damage(self._history, [RequireLease(ticket.token), *needed]):
            reopen(runs, head, self._open_runs, self._history.blobs)
        moved = {**ticket.now_ms, **(watermarks or {})}
        back = [name for name, at_ms in moved.items() if at_ms < head.watermarks.get(name, at_ms)] if self._set_back else []
        update = CommitEpoch(
            epoch=ticket.epoch,
            runs=runs,
            source=None if source is None else sealed(head.source, source, self._maker()),
            watermarks=moved,
            set_back=tuple(sorted(back)),
            outputs=tuple(outputs),
            sums=tuple(sums),
            inline=dict(inline or {}),
            counts={paths.checked_name("count", name): count for name, count in (counts or {}).items() if count},
            begins=self._begins,
            used=used or {},
        )
        behind = [AdvancePublished(ticket.epoch)] if published else []
        manifest = commit(self._history, [*also, update, *behind], needed, token=ticket.token)
        if checkpoint:
            maybe_checkpoint(self._history)
        return manifest

    def _maker(self) -> Maker:
        """Of objects of seen files, which this epoch is the first to name."""
        ticket, history = self.ticket, self._history

        def write(name: str, data: bytes) -> None:
            create_or_read(history.blobs, name, data, history.settings.retry, history.clock, history.randomness)

        return Maker(
            ticket.store,
            lambda part: paths.seen(ticket.start, f"{ticket.token}-{ticket.epoch}-{ticket.attempt}", part),
            lambda ref: seen.load(history.blobs, ticket.store, ref, ticket.epoch - 1),
            write,
        )

    def _place(self, reports: Sequence[Report]) -> tuple[RunRef, ...]:
        """All runs of the epoch; those that came inside reports are written as one object first."""
        small = [BuiltRun(run.ref, run.data) for report in reports for run in report.inline]
        placed = [run for report in reports for run in report.runs]
        if small:
            ticket, history = self.ticket, self._history
            name = paths.run(ticket.start, f"{ticket.token}-{ticket.epoch}-{ticket.attempt}", "small")
            placed += write_object(small, name, history.blobs, history.settings, history.clock, history.randomness)
        _check_disjoint(placed, ticket_epoch=self.ticket.epoch)
        return tuple(placed)


def _checked_time(name: str, time_ms: int) -> int:
    """Times far from the ends of 64 bits, so that any time to live can be added."""
    if not -MOST_TIME_MS <= time_ms <= MOST_TIME_MS:
        raise BadInput(f"{time_ms} ms cannot be the time of {name}: use a time within {MOST_TIME_MS} ms of 1970")
    return time_ms


def _check_disjoint(runs: Sequence[RunRef], ticket_epoch: int) -> None:
    """Two tasks that wrote the same key group of a table leave open whose rows are newer."""
    ranges = sorted((run.table, low, high, run.id) for run in runs for low, high in run.groups)
    table, end, name = "", 0, ""
    for of, low, high, other in ranges:
        if of == table and low < end and other != name:
            raise BadInput(
                f"epoch {ticket_epoch}: two tasks wrote key group {low} of table {table} ({name} and {other}); "
                "each key group belongs to one task of an epoch"
            )
        if of != table or high > end:
            table, end, name = of, high, other
