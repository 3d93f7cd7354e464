"""The blob contract that every tier keeps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from floodplain.clock import Clock
from floodplain.tiers.derived import DerivedCache


class Gathered:
    """Bytes that lie in several places of memory, in order: a file is written from there, without copying them together."""

    def __init__(self, parts: Iterable[bytes | pa.Buffer]) -> None:
        self.parts = tuple(part for part in parts if len(part))
        self._size = sum(map(len, self.parts))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


Data: TypeAlias = bytes | memoryview | pa.Buffer
Writable: TypeAlias = Data | Gathered
Range: TypeAlias = tuple[int, int]
"""(offset, length)"""


def whole(data: Writable) -> pa.Buffer:
    """The bytes in one place, not copied if they are in one."""
    if isinstance(data, Gathered):
        return pa.py_buffer(data.parts[0] if len(data.parts) == 1 else bytes(data))
    return pa.py_buffer(data)


@dataclass(frozen=True, slots=True)
class BlobInfo:
    name: str
    size_bytes: int


class Blobs(ABC):
    """A flat space of immutable-by-convention blobs under one root.

    Names are made by ``paths.py`` only: relative, ``/``-separated, never from a user's string.
    All methods are safe to call from several threads. Errors are those of ``floodplain.errors``:
    ``NotFound``, ``AlreadyExists``, ``Unavailable`` (passing), ``Refused`` (for good), and nothing else.
    """

    tier: str
    """The label of this tier in counters: ``memory``, ``disk``, ``tmpfs``, ``object``, ``directory``."""
    url: str
    """Where it is, for messages; carries no credentials."""
    answers_at_once: bool = False
    """Whether nothing is waited for, so that asking in several threads only costs."""
    derived: DerivedCache | None = None
    """Where readers keep what they made of blobs, to use it mapped the next time. None where there is no cache."""

    @abstractmethod
    def create(self, name: str, data: Writable) -> None:
        """Store ``data`` under ``name`` unless the name is taken.

        Atomic and durable on return: readers see all of it or nothing. Any error is ambiguous, ``AlreadyExists``
        included; ``create.create_or_read`` settles it by reading back.
        """

    @abstractmethod
    def put(self, name: str, data: Data) -> None:
        """Store ``data`` under ``name``, replacing what was there. Atomic and durable on return."""

    @abstractmethod
    def get(self, name: str) -> pa.Buffer: ...

    @abstractmethod
    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """One buffer per range, in order; fetched concurrently and coalesced where that saves requests.

        A range that reaches past the end gives a shorter buffer, never an error: the caller's checksum names the damage.
        """

    def fetch_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """As ``get_ranges``, past all caches: for what the caller keeps in ``derived`` in another form."""
        return self.get_ranges(name, ranges)

    @abstractmethod
    def map(self, name: str) -> pa.Buffer | None:
        """The blob memory-mapped, or None where this tier is not a local file system or is not to be mapped."""

    def mapped_bytes(self, name: str) -> int | None:  # noqa: ARG002
        """The length that the file behind ``map`` has now; None where it is gone (what is mapped of it stays readable), or where
        there is no such file. Costs one look at the file system and no request."""
        return None

    def at_hand(self, name: str, ranges: Sequence[Range]) -> list[bool]:  # noqa: ARG002
        """Per range, whether reading it now would ask nothing remote. What is at hand may go at any time; costs no request."""
        return [self.answers_at_once] * len(ranges)

    @abstractmethod
    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """Blobs whose name starts with ``prefix``, in ascending name order, only those greater than ``after``.

        A blob that exists before the call and through it is listed.
        """

    def top(self) -> Iterable[str]:
        """What is at the root, those that are no blobs included: the first segments of all names, each at least once."""
        return (info.name.partition("/")[0] for info in self.list(""))

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """A missing name is not an error."""

    @abstractmethod
    def size(self, name: str) -> int: ...

    def modified_ms(self, name: str) -> int | None:  # noqa: ARG002
        """When the blob was last written, by the clock of where it is; None where there is no clock but that of this process.
        Stores may know it to the second only."""
        return None

    def forget(self, names: Iterable[str]) -> None:  # noqa: ARG002
        """Drop what caches hold of these blobs, so that the next read asks the lowest tier.

        For bytes that turn out damaged, and for blobs that are hardly read any more. What is mapped stays readable.
        """
        return

    def reserve(self, size_bytes: int) -> None:  # noqa: ARG002
        """Set so much room aside, where room can run out, unless that was done or there is none. See ``give_up_reserve``."""
        return

    def give_up_reserve(self) -> int:
        """Free the room that was set aside, by any process; how many bytes that were. For what makes room: deleting garbage
        begins with writing down that it is."""
        return 0

    def sweep(self, clock: Clock, older_than_ms: int) -> int:  # noqa: ARG002
        """Delete what killed processes left unfinished and last wrote to that long ago; returns how many.

        Such leftovers are never listed or read and only take room. A write that has been going on for longer may start
        over. Most tiers leave none.
        """
        return 0

    def close(self) -> None:
        """Release connections and mappings. Further calls are undefined."""
