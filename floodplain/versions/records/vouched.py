"""Files with a length and checksum in an edit or a task's report: none is used before both are verified."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import xxhash

from floodplain.errors import Corrupt, NotFound
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable

HELD_BYTES = 256 << 20
"""Of files that are not mapped, what is kept between checking and using them; what is beyond is read and checked twice."""


class FileSum(msgspec.Struct, frozen=True, array_like=True):
    """What vouches for a file, or for a piece of one."""

    length: int
    checksum: int
    """xxh3-64 of these bytes."""

    @classmethod
    def of(cls, data: Data) -> "FileSum":
        return cls(len(data), xxhash.xxh3_64_intdigest(data))

    def __str__(self) -> str:
        return f"{self.length} bytes with checksum {self.checksum:016x}"


def check(file: str, expected: FileSum, data: Data, last_good_epoch: int | None, at: int | None = None) -> None:
    """Raises ``Corrupt`` unless these bytes are what is expected. ``at``: where they begin, if they are a piece of the file."""
    actual = FileSum.of(data)
    if actual != expected:
        where = "" if at is None else f" at {at}"
        raise Corrupt(file, f"{expected}{where}", f"{actual}{where}", last_good_epoch)


def checked(name: str, blobs: Blobs, check: Callable[[pa.Buffer], None]) -> tuple[pa.Buffer, bool]:
    """The very bytes that ``check`` has found right, and whether they are mapped.

    A copy that was damaged on its way here, or in a cache, is not the file: it is read once more before giving up.
    """
    data, mapped = _read(name, blobs)
    try:
        check(data)
    except Corrupt:
        blobs.forget([name])
        data, mapped = _read(name, blobs)
        check(data)
    return data, mapped


def _read(name: str, blobs: Blobs) -> tuple[pa.Buffer, bool]:
    mapped = blobs.map(name)
    return (blobs.get(name), False) if mapped is None else (mapped, True)


class Vouched(Blobs):
    """Blobs of which some are vouched for: those are read whole, and checked before a byte of them is given out.

    All others are read as they are. A file that is vouched for and not there is damage, too.
    """

    def __init__(
        self, inner: Blobs, sums: Mapping[str, FileSum], last_good_epoch: int, at_hand: Mapping[str, bytes] | None = None
    ) -> None:
        """``at_hand``: those of the files that are not among the blobs."""
        self._at_hand = at_hand or {}
        self.tier, self.url, self.answers_at_once = inner.tier, inner.url, inner.answers_at_once
        self._inner, self._sums, self._last_good_epoch = inner, dict(sums), last_good_epoch
        self._held: dict[str, tuple[pa.Buffer, bool]] = {}
        self._held_bytes = 0

    def check_all(self) -> None:
        """Raises ``Corrupt`` for the first of all files that is damaged."""
        for name in sorted(self._sums):
            self._checked(name)

    def check(self, name: str, data: Data) -> None:
        """Whether these bytes, which are elsewhere, are those of the file."""
        if name in self._sums:
            check(name, self._sums[name], data, self._last_good_epoch)

    def get(self, name: str) -> pa.Buffer:
        return self._checked(name)[0] if name in self._sums else self._inner.get(name)

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        if name not in self._sums:
            return self._inner.get_ranges(name, ranges)
        data = self.get(name)
        return [data[offset : offset + length] for offset, length in ranges]

    def at_hand(self, name: str, ranges: Sequence[Range]) -> list[bool]:
        return [True] * len(ranges) if name in self._held else self._inner.at_hand(name, ranges)

    def map(self, name: str) -> pa.Buffer | None:
        if name not in self._sums:
            return self._inner.map(name)
        data, mapped = self._checked(name)
        return data if mapped else None

    def _checked(self, name: str) -> tuple[pa.Buffer, bool]:
        if name in self._held:
            return self._held[name]
        if (content := self._at_hand.get(name)) is not None:
            self.check(name, content)
            return pa.py_buffer(content), False
        try:
            data = checked(name, self._inner, partial(self.check, name))
        except NotFound as error:
            raise Corrupt(name, str(self._sums[name]), "no such file", self._last_good_epoch) from error
        taken = 0 if data[1] else data[0].size
        if self._held_bytes + taken <= HELD_BYTES:
            self._held[name] = data
            self._held_bytes += taken
        return data

    def create(self, name: str, data: Writable) -> None:
        self._inner.create(name, data)

    def put(self, name: str, data: Data) -> None:
        self._inner.put(name, data)

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        return self._inner.list(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        self._inner.delete(names)

    def is_at_hand(self, name: str) -> bool:
        """Whether there is no such blob, but the file itself."""
        return name in self._at_hand

    def size(self, name: str) -> int:
        return len(self._at_hand[name]) if name in self._at_hand else self._inner.size(name)

    def modified_ms(self, name: str) -> int | None:
        return self._inner.modified_ms(name)
