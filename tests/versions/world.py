"""A small world for the tests of versions: stores with fake runs whose manifests can be checked for sense."""

import itertools
from collections.abc import Sequence

from floodplain.clock import Clock, ManualClock, SeededRandomness
from floodplain.metrics import Counters
from floodplain.settings import RetentionSettings, RetrySettings, StoreSettings
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.manifest_checkpoint import maybe_checkpoint
from floodplain.versions.log.requirements import RequireEpoch, RequireNoRestore, RequireRetained, RequireRuns, RequireStart
from floodplain.versions.records.edit import CommitEpoch, PutSchema, ReplaceRuns, RestoreEpoch, RunRef, SourcePosition, Update
from floodplain.versions.records.manifest import Manifest, content_of
from floodplain.versions.records.schema import TableSchema
from floodplain.versions.retention.garbage import collect

GROUPS = ((0, 16),)
SETTINGS = StoreSettings(
    checkpoint_every=8,
    retention=RetentionSettings(newest=3, every_ms=()),
    retry=RetrySettings(attempts=3, first_delay_ms=1, max_delay_ms=1),
)
_seeds = itertools.count(1)


def memory() -> MemoryBlobs:
    return MemoryBlobs("memory://test", Counters())


def create(blobs: Blobs, clock: Clock | None = None, settings: StoreSettings = SETTINGS, *, log_segment: int = 1) -> History:
    """A new store with one table. Its log can be trimmed anywhere, unless ``log_segment`` is longer."""
    randomness = SeededRandomness(next(_seeds))
    history = History.create(
        blobs, 16, settings=settings, clock=clock or ManualClock(), randomness=randomness, log_segment=log_segment
    )
    if not history.head.schemas:
        commit(history, [PutSchema(schema("t"))])
    return history


def reopen(blobs: Blobs, clock: Clock | None = None, settings: StoreSettings = SETTINGS) -> History:
    """As another process would."""
    return History.open(blobs, settings=settings, clock=clock or ManualClock(), randomness=SeededRandomness(next(_seeds)))


def schema(table: str, id_: int = 1) -> TableSchema:
    return TableSchema(table=table, id=id_, shape="value", keys=(), subkeys=(), values=(), next_field=1)


def run(name: str, low: int, high: int, groups: tuple[tuple[int, int], ...] = GROUPS) -> RunRef:
    return RunRef(
        object=name,
        offset=0,
        length=1,
        footer_length=1,
        footer_checksum=0,
        object_size=1,
        table="t",
        schema_id=1,
        low=low,
        high=high,
        groups=groups,
        written_groups=16,
        rows=1,
        added=high,
    )


def put_run(history: History, low: int, high: int, start: int | None = None) -> RunRef:
    name = paths.run(history.head.position if start is None else start, "w", history.randomness.nonce())
    history.blobs.create(name, f"{low}-{high}".encode())
    return run(name, low, high)


def next_epoch(history: History, token: int = 0, also: Sequence[Update] = ()) -> Manifest:
    """Write a run, then commit it as the epoch after the head."""
    head = history.head
    epoch = head.epoch + 1
    ref = put_run(history, epoch, epoch)
    needs = [RequireEpoch(head.epoch), RequireStart(head.position)]
    source = SourcePosition("w", epoch, " ".join([*map(str, lineage(head)), str(epoch)]))
    return commit(history, [CommitEpoch(epoch, (ref,), source), *also], needs, token=token)


def lineage(manifest: Manifest) -> list[int]:
    """The epochs that the content of a manifest is made of. Once one was restored, they stand where others have their input
    position."""
    return [int(epoch) for epoch in manifest.source.offsets.split()] if manifest.restored else [*range(1, manifest.epoch + 1)]


def restore(history: History, epoch: int, token: int = 0) -> Manifest:
    """An epoch with the content of another one."""
    head, past = history.head, history.at(epoch)
    update = RestoreEpoch(head.epoch + 1, epoch, past.chain, content_of(past))
    return commit(history, [update], [RequireEpoch(head.epoch), RequireRetained(epoch)], token=token)


def epochs(history: History, count: int, token: int = 0) -> Manifest:
    for _ in range(count):
        next_epoch(history, token)
    return history.head


def compact(history: History) -> Manifest:
    """Replace all runs by one."""
    head = history.head
    runs = head.runs["t"]
    ref = put_run(history, min(run.low for run in runs), max(run.high for run in runs))
    update = ReplaceRuns("t", GROUPS, tuple(run.id for run in runs), (ref,))
    needs = [*RequireRuns.of(runs, GROUPS), RequireStart(head.position), RequireNoRestore(head.position)]
    return commit(history, [update], needs)


def check_manifest(manifest: Manifest, blobs: Blobs) -> None:
    """Every epoch that it is made of is in exactly one run, and the runs' objects are there and hold them."""
    held = sorted((run.low, run.high, run.object) for run in manifest.runs.get("t", ()))
    epochs = lineage(manifest)
    for low, high, name in held:
        assert low == epochs.pop(0), f"an epoch is missing or twice in {held}, which should hold {lineage(manifest)}"
        while epochs and epochs[0] <= high:
            epochs.pop(0)
        assert blobs.get(name).to_pybytes() == f"{low}-{high}".encode()
    assert not epochs


def check_store(blobs: Blobs, clock: Clock | None = None) -> History:
    """It opens, and every retained epoch reads as it should."""
    history = reopen(blobs, clock)
    check_manifest(history.head, blobs)
    for mark in history.head.epochs:
        manifest = history.at(mark.epoch)
        assert manifest.epoch == mark.epoch
        check_manifest(manifest, blobs)
    return history


def names(blobs: Blobs, prefix: str = "") -> list[str]:
    return [info.name for info in blobs.list(prefix)]


def positions(blobs: Blobs, prefix: str) -> list[int]:
    return [position for name in names(blobs, prefix) if (position := paths.position_of(name)) is not None]


def check_clean(blobs: Blobs, history: History) -> None:
    """Nothing is left that no retained epoch needs, and the log is as short as it may be."""
    head = history.refresh()
    needed = head.objects().union(*(history.at(mark.epoch).objects() for mark in head.epochs))
    assert set(names(blobs, paths.RUNS)) == needed
    checkpoints = positions(blobs, paths.MANIFESTS)
    marks = {mark.position for mark in head.epochs}
    log = positions(blobs, paths.LOG)
    assert log == list(range(log[0], head.position + 1)) if log else head.position == checkpoints[-1]
    assert not names(blobs, paths.PINS)
    trimmed = [position for position in checkpoints if not log or position < log[0]]
    assert all(position in marks for position in trimmed[:-1])


def sweep(blobs: Blobs, clock: Clock | None = None) -> History:
    """Collect until nothing more can go: the second time trims up to what the first time checkpointed."""
    history = reopen(blobs, clock)
    for _ in range(3):
        collect(history, horizon=history.refresh().position)
    return history


def long_store(count: int = 20) -> tuple[Blobs, History]:
    """Checkpoints at 8 and 16; nothing trimmed."""
    blobs = memory()
    history = create(blobs)
    for _ in range(count):
        next_epoch(history)
        maybe_checkpoint(history)
    return blobs, history
