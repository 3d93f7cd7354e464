"""Writing a task's share of an epoch: rows in, one report out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import pyarrow as pa

from floodplain.clock import Clock, Randomness
from floodplain.errors import BadInput, Corrupt, NotFound, UserError, short
from floodplain.settings import StoreSettings
from floodplain.store.rows import large_tables
from floodplain.store.rows.definition import recorded
from floodplain.store.rows.delta import physical_rows, settle, unmergeable
from floodplain.store.run.cached_run import admit
from floodplain.store.run.open_runs import LOCAL_TIERS, OpenRuns
from floodplain.store.run.writer import BuiltRun, RunOptions, build_run, pack
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs, Range, Writable, whole
from floodplain.tiers.create import create_or_read
from floodplain.versions.log.history import History
from floodplain.versions.log.requirements import Requirement
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema


class Ticket(msgspec.Struct, frozen=True):
    """What a task needs to know of the epoch it writes for. Small, and the same for all tasks of the epoch."""

    store: str
    key_groups: int
    token: int
    epoch: int
    start: int
    """The log position that the epoch started from."""
    attempt: str
    """Tells this try at the epoch from another try under the same lease."""
    now_ms: dict[str, int]
    """Watermark → its value in this epoch; rows count their time to live from that of their table's clock."""
    schemas: dict[str, TableSchema]

    def clock_ms(self, schema: TableSchema) -> int | None:
        """None: the clock of this table has not begun, so nothing counts from it and nothing has ended by it."""
        return self.now_ms.get(schema.ttl_clock)


class InlineRun(msgspec.Struct, frozen=True):
    """A small run on its way to the driver, which finds it a place."""

    ref: RunRef
    data: bytes


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task wrote: runs in objects of its own, or so small that they travel in here."""

    runs: tuple[RunRef, ...] = ()
    inline: tuple[InlineRun, ...] = ()
    rows: int = 0


class TaskWriter:
    """Collects the deltas of one task and writes them as one object. Used by one thread."""

    def __init__(
        self,
        ticket: Ticket,
        blobs: Blobs,
        settings: StoreSettings,
        clock: Clock,
        randomness: Randomness,
        *,
        operator: str,
        part: str,
    ) -> None:
        """``operator`` and ``part`` name the object: together they must not repeat within a try at an epoch."""
        self._ticket = ticket
        self._blobs = blobs
        self.settings = settings
        self.clock = clock
        self._randomness = randomness
        self._name = paths.run(
            ticket.start, f"{ticket.token}-{ticket.epoch}-{ticket.attempt}", f"{paths.checked_name('operator', operator)}-{part}"
        )
        self._deltas: dict[str, list[pa.Table]] = {}

    @property
    def epoch(self) -> int:
        return self._ticket.epoch

    def schema(self, table: str) -> TableSchema:
        schema = self._ticket.schemas.get(table)
        if schema is None:
            raise BadInput(f"there is no table {table!r}; there are: {', '.join(sorted(self._ticket.schemas)) or 'none'}")
        return schema

    def clock_ms(self, table: str) -> int | None:
        """What rows of this table count their time to live from, unless they say their ends themselves."""
        return self._ticket.clock_ms(self.schema(table))

    def write(self, table: str, rows: pa.Table | pa.RecordBatch, op: str = "put") -> None:
        """Add a delta. Rows that speak of the same entry count in the order they are written."""
        schema = self.schema(table)
        whole = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        for piece in large_tables.slices(whole, large_tables.MOST_BYTES):
            physical = physical_rows(recorded(schema), piece, op, self._ticket.clock_ms(schema))
            if len(physical):
                self._deltas.setdefault(table, []).append(physical)

    def finish(self) -> Report:
        """Write what was collected; nothing refers to it until its report is committed."""
        report, store = self.built()
        store()
        return report

    def built(self) -> tuple[Report, Callable[[], None]]:
        """The report of what was collected, and what writes it: to be called, from any thread, before the report is handed on."""
        runs = [self._build(table, parts) for table, parts in sorted(self._deltas.items())]
        self._deltas = {}
        if not runs:
            return Report(), _nothing
        rows = sum(run.ref.rows for run in runs)
        if sum(len(run.data) for run in runs) < self.settings.inline_bytes:
            inline = tuple(InlineRun(run.ref, bytes(run.data)) for run in runs)
            return Report(inline=inline, rows=rows), partial(keep, runs, self._ticket.store, self._blobs)
        data, refs = pack(runs, self._name)
        return Report(runs=refs, rows=rows), partial(self._store, runs, data)

    def _store(self, runs: Sequence[BuiltRun], data: Writable) -> None:
        _create(data, self._name, self._blobs, self.settings, self.clock, self._randomness)
        keep(runs, self._ticket.store, self._blobs)

    def _build(self, table: str, parts: list[pa.Table]) -> BuiltRun:
        ticket = self._ticket
        schema = ticket.schemas[table]
        now_ms = ticket.clock_ms(schema)
        try:
            rows = settle(schema, parts, now_ms, ticket.key_groups)
        except UserError as error:
            key = unmergeable(schema, parts, now_ms, ticket.key_groups)
            raise UserError(f"epoch {ticket.epoch}, table {table}, key {short(key)}: {error}") from error
        options = run_options(self.settings, self._blobs, ticket.store, ticket.key_groups)
        return build_run(rows, schema, ticket.epoch, ticket.epoch, ticket.epoch, options)


def run_options(settings: StoreSettings, blobs: Blobs, store: str, key_groups: int) -> RunOptions:
    local = blobs.tier in LOCAL_TIERS
    compression = settings.compression
    if compression == "auto":
        compression = "none" if local else "zstd"
    chunk_bytes = settings.chunk_bytes or (4 << 20 if local else 1 << 20)
    return RunOptions(store, key_groups, chunk_bytes, None if compression == "none" else compression, filtered=not local)


def write_object(
    runs: list[BuiltRun], name: str, blobs: Blobs, settings: StoreSettings, clock: Clock, randomness: Randomness
) -> tuple[RunRef, ...]:
    """Store runs as one object; returns where each is. The cache of this machine does not hold them: see ``keep``."""
    data, refs = pack(runs, name)
    _create(data, name, blobs, settings, clock, randomness)
    return refs


def _create(data: Writable, name: str, blobs: Blobs, settings: StoreSettings, clock: Clock, randomness: Randomness) -> None:
    if create_or_read(blobs, name, data, settings.retry, clock, randomness) is not None:
        raise BadInput(f"{name} was written already by another task: operator and part must name a task once per try")


def keep(runs: Sequence[BuiltRun], store: str, blobs: Blobs) -> None:
    """Have the cache of this machine hold what was just written, so that nobody here fetches it back.

    Raises ``Corrupt`` if a run is not what was to be written: it is decoded for this, before anything refers to it.
    """
    derived = blobs.derived
    if derived is None:
        return
    for run in runs:
        data = whole(run.data)
        admit(run.ref, store, derived, partial(_slices, data))


def _slices(data: pa.Buffer, ranges: Sequence[Range]) -> list[pa.Buffer]:
    return [data.slice(offset, length) for offset, length in ranges]


def _nothing() -> None:
    """Of a task that has no changes."""


@contextmanager
def conflict_before_damage(history: History, requirements: Sequence[Requirement]) -> Iterator[None]:
    """For work on files that a collection may delete once a requirement no longer holds: then that is what is raised."""
    try:
        yield
    except (Corrupt, NotFound):
        head = history.refresh()
        for requirement in requirements:
            requirement.check(head)
        raise


def reopen(refs: tuple[RunRef, ...], manifest: Manifest, open_runs: OpenRuns, blobs: Blobs) -> None:
    """Look once more at runs that are about to be committed, where that costs no request.

    Raises ``Corrupt`` if what was stored is not what was written.
    """
    if blobs.tier in LOCAL_TIERS:
        open_runs.sources_of(refs, manifest)
