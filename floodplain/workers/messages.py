"""What coordinator, workers and bridge tasks say to each other: msgpack on authenticated connections, never pickle."""

from typing import TypeAlias

import msgspec

from floodplain.eventtime.times import EpochTimes
from floodplain.expressions.comparison import Comparison
from floodplain.runtime.pieces import Piece, PieceKey, Segment
from floodplain.runtime.staging import StagedFile
from floodplain.runtime.task_errors import Failure
from floodplain.sources.event_times import EventTimes
from floodplain.sources.parquet import FileRange
from floodplain.sources.scan import ParquetScan
from floodplain.versions.records.edit import Assignment, GroupRanges, RunRef


class Peer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where other processes reach a worker for rows."""

    worker: int
    host: str
    port: int
    local: str = ""
    """An abstract Unix socket: whoever can open it runs on the same host. Empty where there are none."""


class Register(msgspec.Struct, frozen=True, tag=True):
    """A worker's first words."""

    job: int
    """Which launch of this worker it belongs to."""
    attempt: int
    """Spark's attempt at the task of that job. The newest counts."""
    pid: int
    peer: Peer


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The worker counts from now on."""


class Fenced(msgspec.Struct, frozen=True, tag=True):
    """Another attempt has this worker's place, from the start or from now on. The worker does nothing until it is told to end."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A sign of life, in both directions. It tells of each side what the other can find out by it: that a command, or its answer,
    got lost."""

    seen: int = 0
    """Of the coordinator: the last command that it has sent. Of a worker: the last that it knows of."""
    open: tuple[int, ...] = ()
    """The commands that a worker has not answered yet."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A new try at an epoch. All that belongs to other tries is dropped."""

    id: int
    nonce: str
    ticket: bytes
    manifest: bytes
    """Of the epoch's start, whole. Empty if ``delta`` says what changed since the try before, or nothing did."""
    times: EpochTimes
    budget_bytes: int
    """How many bytes of pieces the worker may keep in memory; the rest spills."""
    assignments: dict[str, Assignment] = {}
    """Operator → its slots in this epoch: once for all commands, since they are as many as slots."""
    delta: bytes = b""
    chain: str = ""
    """Of the manifest."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read ranges of the input, and keep a piece for each."""

    id: int
    nonce: str
    operator: str
    scan: ParquetScan
    ranges: tuple[FileRange, ...]
    partitions: tuple[int, ...]
    """The place of each range among all of the epoch."""
    rows: bytes
    """The Arrow schema of the rows that the operator gets."""
    keys: tuple[str, ...]
    combine: bool = False
    """Whether the operator's combiner is applied before rows are split."""


class Made(msgspec.Struct, frozen=True, tag=True):
    """The pieces that a read has made."""

    id: int
    pieces: tuple[Piece, ...]
    rows: int
    """Rows that were read, before any step."""
    event_times: EventTimes = EventTimes()
    """Where the scan observes them."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run one slot of an operator."""

    id: int
    nonce: str
    operator: str
    slot: int
    part: str
    rows: bytes
    """The Arrow schema of the rows."""
    outputs: dict[str, tuple[str, ...]]
    readers: dict[str, str] = {}
    """Output → the operator by whose slots it is split."""
    kept: tuple[str, ...] = ()
    """Outputs that the worker keeps for the next operator."""
    task_values: bytes = b""
    broadcast: bytes = b""
    fixed: bytes = b""
    """What the driver has fixed for this epoch, of an operator that needs that."""
    checks: tuple[str, ...] = ()
    """Outputs whose rows are checked for their sinks."""
    pieces: tuple[Piece, ...] = ()
    peers: tuple[Peer, ...] = ()
    files: tuple[StagedFile, ...] = ()
    """Staged rows, if it does not read pieces."""
    where: tuple[Comparison, ...] = ()


class Done(msgspec.Struct, frozen=True, tag=True):
    """The report of a slot."""

    id: int
    report: bytes


class Failed(msgspec.Struct, frozen=True, tag=True):
    """What a command ended with instead."""

    id: int
    failure: Failure


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """The try is given up: none of its commands need be begun, and what it keeps is dropped."""

    nonce: str


class End(msgspec.Struct, frozen=True, tag=True):
    """The query is over: return."""

    at_once: bool = False
    """Also in the middle of a command."""


class Prefetch(msgspec.Struct, frozen=True, tag=True):
    """Fetch into the cache of this machine what is about to be committed, beside all other work."""

    id: int
    store: str
    runs: tuple[RunRef, ...]
    groups: GroupRanges
    """The key groups of the worker's slots."""
    key_groups: int
    bytes_per_s: int | None = None


class Prefetched(msgspec.Struct, frozen=True, tag=True):
    """It is there, or could not be fetched."""

    id: int


class Attach(msgspec.Struct, frozen=True, tag=True):
    """A peer's first words."""


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Asks a worker for rows of a piece. On a Unix socket the answer has the files themselves; else one of their segments."""

    nonce: str
    key: PieceKey
    segment: Segment | None = None


class Fetched(msgspec.Struct, frozen=True, tag=True):
    """The answer, with the bytes or files behind it."""

    files: int = 0
    missing: str = ""
    """Why there is nothing."""


class Push(msgspec.Struct, frozen=True, tag=True):
    """Rows of a bridge task for a slot of this worker, with the Arrow stream behind it."""

    nonce: str
    key: PieceKey
    slot: int
    rows: int
    checksum: int
    """Of the stream, as of a ``Segment``."""


class Pushed(msgspec.Struct, frozen=True, tag=True):
    """Asks what the worker has of a piece by now; the answer is ``Kept``."""

    nonce: str
    key: PieceKey


class Kept(msgspec.Struct, frozen=True, tag=True):
    """What a worker has of a piece."""

    segments: tuple[Segment, ...] = ()
    refused: str = ""
    """Why it takes nothing of that try."""


Message: TypeAlias = (
    Register
    | Welcome
    | Fenced
    | Beat
    | Begin
    | Read
    | Made
    | Run
    | Done
    | Failed
    | Abandon
    | Prefetch
    | Prefetched
    | End
    | Attach
    | Fetch
    | Fetched
    | Push
    | Pushed
    | Kept
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encoded(message: Message) -> bytes:
    return _encoder.encode(message)


def decoded(data: bytes) -> Message:
    """Raises ``msgspec.DecodeError`` if it is none."""
    made: Message = _decoder.decode(data)
    return made
