"""Expiring pins: how a reader in any process keeps an epoch's files while it reads."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType

import msgspec

from floodplain.errors import Corrupt, NotFound, SnapshotExpired, Unavailable
from floodplain.tiers import paths
from floodplain.tiers.blobs import BlobInfo
from floodplain.tiers.create import create_or_read
from floodplain.versions.log.history import History
from floodplain.versions.records.frame import Kind, decode, encode
from floodplain.versions.records.manifest import EpochMark, Manifest


class PinRecord(msgspec.Struct, frozen=True):
    store: str
    mark: EpochMark
    expires_ms: int
    owner: str
    """The nonce in its name."""


class Pin:
    """Holds one epoch until it is closed or runs out. Made by ``pin``.

    Once ``check`` has passed after a read, what was read was there by right; after ``SnapshotExpired``, use none of it.
    """

    def __init__(self, history: History, record: PinRecord, manifest: Manifest) -> None:
        self.manifest = manifest
        self._history = history
        self._record = record

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def expires_ms(self) -> int:
        return self._record.expires_ms

    @property
    def record(self) -> PinRecord:
        """What another process needs to ``share`` it."""
        return self._record

    def check(self) -> None:
        """Raises ``SnapshotExpired`` once the pin has run out by the clock."""
        if self._history.clock.now_ms() >= self._record.expires_ms:
            raise SnapshotExpired(
                f"the pin on epoch {self.epoch} ran out: its files may be gone. Pin a retained epoch again, "
                "and renew the pin more often than every pin_ms"
            )

    def renew(self) -> None:
        """Hold it for another ``pin_ms``.

        Counts only if it is stored before the old time is up, because only until then is a collection sure to have
        respected the old pin.
        """
        self.check()
        renewed = msgspec.structs.replace(self._record, expires_ms=_expiry(self._history))
        self._history.blobs.put(paths.pin(renewed.owner), encode(Kind.PIN, renewed))
        try:
            self.check()
        except SnapshotExpired:
            self.close()
            raise
        self._record = renewed

    def keep(self) -> None:
        """Renew it if half of its time is over: to be called between the steps of a long read."""
        if self._record.expires_ms - self._history.clock.now_ms() < self._history.settings.pin_ms // 2:
            self.renew()

    def close(self) -> None:
        """Let go. A pin that cannot be deleted now runs out by itself."""
        with suppress(Unavailable):
            self._history.blobs.delete([paths.pin(self._record.owner)])

    def __enter__(self) -> "Pin":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def pin(history: History, epoch: int | None = None) -> Pin:
    """Pin a retained epoch, by default the newest.

    The pin is stored first, then the log is read again. An epoch is forgotten by an edit, and a collection lists the pins
    after that edit. So either the second reading sees the edit, and this raises ``SnapshotExpired``; or the edit came
    after the pin was stored, and the collection finds the pin.
    """
    head = history.refresh()
    epoch = head.epoch if epoch is None else epoch
    manifest = history.at(epoch)
    mark = EpochMark(epoch, manifest.position, manifest.at_ms, manifest.chain)
    record = PinRecord(manifest.store, mark, _expiry(history), history.randomness.nonce())
    held = Pin(history, record, manifest)
    data = encode(Kind.PIN, record)
    create_or_read(history.blobs, paths.pin(record.owner), data, history.settings.retry, history.clock, history.randomness)
    try:
        history.refresh()
        if epoch and history.head.mark(epoch) is None:
            raise SnapshotExpired(f"epoch {epoch} was forgotten while it was being pinned: pin a newer one")
        held.check()
    except BaseException:
        held.close()
        raise
    return held


def share(history: History, record: PinRecord) -> Pin:
    """The pin of another process, for as long as it holds; else one of its own on the same epoch.

    Raises ``SnapshotExpired`` if it has run out and the epoch is no longer retained.
    """
    name = paths.pin(record.owner)
    with suppress(NotFound):
        record = decode(Kind.PIN, PinRecord, history.blobs.get(name), name)
    if history.clock.now_ms() >= record.expires_ms:
        return pin(history, record.mark.epoch)
    held = Pin(history, record, history.manifest_at(record.mark))
    held.keep()
    return held


def live(history: History, now_ms: int, listed: Iterable[BlobInfo]) -> tuple[list[PinRecord], list[str]]:
    """Those of the ``listed`` pins that hold at ``now_ms``, and the names of those that do not.

    Clocks differ: a pin holds for a margin longer than its owner believes it does. One that cannot be read stops the
    collection, since what it holds cannot be known.
    """
    margin_ms = history.settings.lease_ms
    holding, expired = [], []
    for name, record in _stored(history, listed):
        if record.expires_ms + margin_ms > now_ms:
            holding.append(record)
        else:
            expired.append(name)
    return holding, expired


def _stored(history: History, listed: Iterable[BlobInfo]) -> Iterator[tuple[str, PinRecord]]:
    for info in listed:
        try:
            data = history.blobs.get(info.name)
        except NotFound:
            continue
        record = decode(Kind.PIN, PinRecord, data, info.name)
        if (record.store, paths.pin(record.owner)) != (history.format.store, info.name):
            raise Corrupt(
                info.name, f"a pin of store {history.format.store}", f"{paths.pin(record.owner)} of store {record.store}"
            )
        yield info.name, record


def _expiry(history: History) -> int:
    return history.clock.now_ms() + history.settings.pin_ms
