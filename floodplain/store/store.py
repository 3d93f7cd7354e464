"""The store: opens a directory or URL, hands out snapshots and the writer, and runs maintenance."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType

import pyarrow as pa

from floodplain.clock import Clock, Randomness, SystemClock, SystemRandomness
from floodplain.errors import BadInput, Conflict, NoSpace, StoreNotFound
from floodplain.host import is_gone, this_process
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.store.compaction import policy
from floodplain.store.compaction.budget import Budget
from floodplain.store.compaction.compactor import Announce, Compacted, announce_to_nobody, compact
from floodplain.store.processing_time import Moment, StoreTime
from floodplain.store.read.diff import Change, changes
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.read.snapshot_files import forgotten_before_damage
from floodplain.store.rollback import RolledBack, planned, roll_back
from floodplain.store.rows import layout
from floodplain.store.rows.evolution import evolve
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.verify import Progress, Verdict, verify
from floodplain.store.write.epoch import Epoch
from floodplain.tiers.open import open_blobs
from floodplain.tiers.probe import probe
from floodplain.tiers.vacancy import check_vacant
from floodplain.versions.log import lease
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.renewal import Renewal
from floodplain.versions.log.requirements import RequireSchema
from floodplain.versions.records.edit import PutSchema
from floodplain.versions.records.manifest import Lease, Manifest
from floodplain.versions.records.schema import PROCESSING_TIME, TableSchema
from floodplain.versions.records.user_names import UserNames
from floodplain.versions.retention import garbage, tags
from floodplain.versions.retention.pins import pin

STALE_TEMP_MS = 3_600_000
"""A file that has been half written for this long has no writer any more."""


class Store:
    """A store opened for reading. ``writer`` takes the lease and writes; maintenance needs no lease.

    Safe to use from several threads; any number of processes may open one store.
    """

    def __init__(self, history: History, counters: Counters) -> None:
        """Use ``Store.open``."""
        self.history = history
        self.counters = counters
        self._reserve_bytes = 0
        """Room to be kept aside from here: whoever has been a writer keeps some."""
        settings = history.settings
        self.open_runs = OpenRuns(
            history.blobs, history.format.store, settings.memory_bytes, counters, window_bytes=settings.window_bytes
        )
        self._seen = history.head.runs
        """Of the newest manifest when runs were last let go of."""

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        *,
        create: bool = False,
        settings: StoreSettings | None = None,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> "Store":
        """Open the store at a directory or URL. With ``create``, create it if there is none, after probing the location.

        The cost does not depend on the size of the state. Raises ``StoreNotFound`` if there is no store, ``UnsafeStore`` if
        commits would not be safe there, or ``BadInput`` if a store is to be created where other files are.
        """
        settings, clock, randomness = settings or StoreSettings(), clock or SystemClock(), randomness or SystemRandomness()
        counters = Counters()
        blobs = open_blobs(location, settings, options=options, clock=clock, randomness=randomness, counters=counters)
        if create:
            check_vacant(blobs)
            try:
                probe(blobs, clock, randomness)
            except NoSpace:
                # One that is there need not be made, and whoever writes to it probes the place once more.
                with suppress(StoreNotFound):
                    return cls(History.open(blobs, settings=settings, clock=clock, randomness=randomness), counters)
                raise
            return cls(
                History.create(blobs, settings.key_groups, settings=settings, clock=clock, randomness=randomness), counters
            )
        return cls(History.open(blobs, settings=settings, clock=clock, randomness=randomness), counters)

    @property
    def head(self) -> Manifest:
        """The newest manifest this process has read."""
        return self.history.head

    def snapshot(self, *, pinned: bool = False) -> Snapshot:
        """The newest epoch. ``pinned`` protects its files from garbage collection until the snapshot is closed."""
        return self._snapshot(self.history.refresh(), pinned)

    def at(self, epoch: int | None = None, *, tag: str | None = None, pinned: bool = False) -> Snapshot:
        """A past epoch, by number or tag. Raises ``SnapshotExpired`` if it is no longer retained."""
        self.history.refresh()
        return self._snapshot(self.history.at(self._chosen(epoch, tag)), pinned)

    def _snapshot(self, manifest: Manifest, pinned: bool) -> Snapshot:
        if self.head.runs is not self._seen:
            self.unmap()
        held = pin(self.history, manifest.epoch) if pinned else None
        return Snapshot(held.manifest if held else manifest, self.open_runs, self.history, held)

    def diff(self, table: str, older: int, newer: int) -> Iterator[Change]:
        """What was added, changed and deleted in a table between two epochs, in bounded pieces."""
        self.history.refresh()
        was, now = self.history.at(older), self.history.at(newer)
        table = UserNames(now.definitions).stored(table, now.schemas) or table
        uses = [self.open_runs.use(manifest) for manifest in (was, now)]
        with forgotten_before_damage(self.history, was, now):
            yield from changes(was, now, table, self.open_runs, self.history.settings.window_bytes)
        del uses

    def writer(self, owner: str, *, force: bool = False, outlasted: Lease | None = None) -> "Writer":
        """Take the lease. Raises ``LeaseHeld`` while another owner has it. With ``force``, that owner is fenced off instead.

        The lease of a process of this machine that has provably ended does not count. ``outlasted``: a lease that the caller
        saw unchanged for its whole length. It does not count either, even if the holder's clock is ahead of ours.
        """

        def take() -> int:
            probe(self.history.blobs, self.history.clock, self.history.randomness)
            return lease.take(self.history, owner, force=force, holder=this_process(), is_gone=is_gone, outlasted=outlasted)

        try:
            token = take()
        except NoSpace:
            # Whoever starts has to write a little before it can clear up what is left of those before it.
            with suppress(NoSpace):
                self.collect_garbage()
            self.history.blobs.give_up_reserve()
            token = take()
        finally:
            self._reserve_bytes = self.history.settings.reserve_bytes
            self.history.blobs.reserve(self._reserve_bytes)
        return Writer(self, token)

    def compact(
        self,
        *,
        full: bool = False,
        step_bytes: int | None = None,
        refresh: bool = True,
        budget: Budget | None = None,
        announce: Announce = announce_to_nobody,
    ) -> Iterator[Compacted]:
        """Compact where the policy says so, one bounded step at a time. A step that loses a race to another one is dropped.

        ``refresh``: look for what other processes have committed; else what this one knows is enough, and costs no request.
        ``budget`` bounds its rate. ``announce`` is told of the runs of a step before they are committed.
        """
        tiered = policy.TieredPolicy() if step_bytes is None else policy.TieredPolicy(step_bytes=step_bytes)
        while True:
            manifest = self.history.refresh() if refresh else self.history.head
            proposals = policy.full(manifest, tiered.step_bytes) if full else tiered.propose(manifest)
            if not proposals:
                return
            for proposal in proposals:
                try:
                    yield compact(self.history, self.open_runs, proposal, manifest, budget, announce)
                except Conflict:
                    break
            if full:
                return

    def collect_garbage(self) -> garbage.Collected:
        """Forget epochs as the retention settings say, and delete files that no retained epoch needs. Safe while epochs run."""
        return self._collected(lambda: garbage.collect(self.history))

    def _collected(self, collect: Callable[[], garbage.Collected]) -> garbage.Collected:
        """On a full disk, too: first goes what needs no edit, then the room that is set aside for this is given up for it."""
        blobs, size_bytes = self.history.blobs, self._reserve_bytes
        try:
            collected = collect()
        except NoSpace:
            self.let_go()
            garbage.delete_unreachable(self.history)
            size_bytes = max(blobs.give_up_reserve(), size_bytes)
            collected = collect()
        finally:
            blobs.reserve(size_bytes)
        self.let_go()
        return collected

    def let_go(self) -> None:
        """Unmap runs that are no longer needed, and delete half-written files of killed processes."""
        self.history.blobs.sweep(self.history.clock, STALE_TEMP_MS)
        self.unmap()

    def unmap(self) -> None:
        """Unmap runs that neither the newest epoch nor a live snapshot needs: a deleted file frees its disk space only then.
        Taking a snapshot also does this if there are new runs."""
        head = self.head
        self._seen = head.runs
        self.open_runs.unmap(head)

    def tag(self, name: str, epoch: int | None = None) -> None:
        """Keep an epoch (the newest if not given) readable until the tag is dropped."""
        tags.set_tag(self.history, name, self.history.refresh().epoch if epoch is None else epoch)

    def drop_tag(self, name: str) -> None:
        """Remove a tag. The retention settings then decide about its epoch."""
        tags.drop_tag(self.history, name)

    def rollback(
        self,
        epoch: int | None = None,
        *,
        tag: str | None = None,
        force: bool = False,
        drop_output: bool = False,
        dry_run: bool = False,
    ) -> RolledBack:
        """Commit a new epoch with the content of a retained one, by number or tag: tables, input position, watermarks, counts.

        It is one edit. A rollback to the epoch before it undoes it. What sinks have published stays published; input that is
        read again is published again, under new epoch numbers. ``force``: fence off another writer that holds the lease.
        ``drop_output``: discard output of the last epoch that is not published yet. ``dry_run``: only return what would change.
        Raises ``SnapshotExpired``, ``Corrupt``, ``LeaseHeld`` or ``BadInput``; then nothing has changed.
        """
        wanted = self._chosen(epoch, tag)
        if dry_run:
            return planned(self.history, wanted)
        with self.writer(f"rollback_{self.history.randomness.nonce()}", force=force) as writer:
            return writer.rollback(wanted, drop_output=drop_output)

    def _chosen(self, epoch: int | None, tag: str | None) -> int:
        if (epoch is None) == (tag is None):
            raise BadInput("give either an epoch or a tag")
        return self.history.tagged(tag).epoch if tag is not None else epoch or 0

    def verify(self, progress: Progress | None = None) -> Verdict:
        """Check every byte of every retained epoch. ``progress`` is called after each run."""
        return verify(self.history, progress)

    def close(self) -> None:
        """Unmap all runs and close connections."""
        self.open_runs.keep_only(())
        self.history.blobs.close()


class Writer:
    """The holder of the lease: it alone commits epochs. ``close`` releases the lease."""

    def __init__(self, store: Store, token: int) -> None:
        self.store = store
        self.token = token
        self._renewal: Renewal | None = None
        self.time = StoreTime(store.history)
        """Processing time, as far as the store's own clock confirms it."""

    def keep(
        self,
        wanted: Callable[[], bool] = lambda: True,
        lost: Callable[[Exception], object] = lambda error: None,  # noqa: ARG005
    ) -> None:
        """Renew the lease in a background thread while ``wanted`` returns true, until ``rest`` or ``close``.

        Without it only commits renew the lease, so a writer whose epoch takes longer than ``lease_ms`` may lose it. ``lost`` is
        called in that thread, with the error, when another writer has taken the lease.
        """
        self.rest()
        self._renewal = Renewal(self.store.history, self.token, wanted, lost)
        self._renewal.start()

    def rest(self) -> None:
        """Stop the background renewal. The lease is not released."""
        if self._renewal is not None:
            self._renewal.stop()

    def define(self, schema: TableSchema, *, renames: Mapping[str, str] | None = None) -> TableSchema:
        """Create the table, or change it to this definition. Returns its newest schema.

        Raises ``SchemaMismatch``, with the column, if rows already written could not be read under it.
        """
        history = self.store.history
        old = history.head.schema(schema.table)
        if old is None:
            new = schema
        else:
            new = evolve(old, schema, renames)
            if new is old:
                return old
        commit(history, [PutSchema(new)], [RequireSchema(schema.table, old.id if old else 0)], token=self.token)
        return new

    def epoch(
        self,
        *,
        now_ms: int | None = None,
        watermarks: Mapping[str, int] | None = None,
        at: Moment | None = None,
        number: int | None = None,
    ) -> Epoch:
        """Begin the next epoch at these times. They are committed with it, and time to live counts from them.

        ``now_ms``: processing time, never earlier than that of the last epoch. By default it is the clock's, as far as the
        store confirms it. ``at``: a moment that ``time`` returned. ``watermarks``: those of event time, by name. ``number``: of
        the first epoch of a state, if that is not 1.
        """
        history = self.store.history
        # Nobody else commits epochs under our lease, and the commit looks for others. But who let it run out may have been passed
        # by the horizon.
        head = history.head if history.clock.now_ms() < history.head.lease.expires_ms else history.refresh()
        before = head.watermarks.get(PROCESSING_TIME, layout.BEGINNING)
        if at is None:
            at = self.time.moment() if now_ms is None else Moment(max(now_ms, before))
        times = {**(watermarks or {}), PROCESSING_TIME: at.now_ms}
        return Epoch(history, self.store.open_runs, self.token, times, set_back=at.set_back, number=number)

    def rollback(self, epoch: int, *, drop_output: bool = False) -> RolledBack:
        """``Store.rollback``, between two epochs of this writer."""
        return roll_back(self.store.history, epoch, self.token, drop_output=drop_output)

    def put(self, table: str, rows: pa.Table | pa.RecordBatch) -> Manifest:
        """Put whole rows into a table and commit, as one epoch."""
        epoch = self.epoch()
        epoch.put(table, rows)
        return epoch.commit()

    def collect_garbage(self) -> garbage.Collected:
        """``Store.collect_garbage``, between two epochs of this writer, so that nothing of its own is running.

        A compaction that runs elsewhere at this moment has to start over.
        """
        history = self.store.history
        return self.store._collected(lambda: garbage.collect(history, token=self.token, horizon=history.refresh().position))

    def close(self) -> None:
        """Release the lease, so that the next writer need not wait."""
        self.rest()
        lease.release(self.store.history, self.token)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
