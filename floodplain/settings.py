"""Settings: frozen values, each with what it costs."""

import re
from dataclasses import dataclass, field
from typing import Literal

from floodplain.errors import BadInput
from floodplain.prices import Prices

LEAST_CLOCK_AHEAD_MS = 2_000
Compression = Literal["auto", "none", "lz4", "zstd"]

LEAST_HEARTBEAT_TIMEOUT_MS = 1000
"""Workers are heard of twice a second."""
MOST_WINDOW_BYTES = 1 << 30
"""A window's rows are concatenated, those before and after a change together, and an Arrow string column ends at 2 GiB."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often and how long a request to a tier is retried after a temporary failure."""

    attempts: int = 6
    """Tries in all. More tries ride out longer outages and delay the error by as much."""
    first_delay_ms: int = 50
    """Doubles with each try, with full jitter."""
    max_delay_ms: int = 5_000
    timeout_ms: int = 30_000
    """Bound on one request. Too short and a slow store looks dead; too long and a dead one looks slow."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """A bounded cache on this machine's disk (or tmpfs) in front of an object store."""

    directory: str
    size_bytes: int
    """The bound, over all processes that share the directory."""
    policy: Literal["lru", "frequency"] = "lru"
    """``frequency`` keeps what is read often through a scan that reads everything once; it costs a small sketch."""
    per: Literal["machine", "executor"] = "machine"
    """``machine``: all processes of a machine that name this directory share one cache and its bound. ``executor``: each executor
    of Spark has its own folder in it, with the bound for itself, and the driver another one. What one of them has, another one
    fetches again, and n executors on a machine take n times the room."""

    def __post_init__(self) -> None:
        if self.per not in ("machine", "executor"):
            raise BadInput(f"CacheSettings(per={self.per!r}) is not possible: use 'machine' or 'executor'")


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """How the compaction of a running query shares the machine and the network with its epochs."""

    budget: str | None = None
    """Bytes that it reads and writes in a second at most, as they are stored: ``"20 MB/s"``. Less: epochs notice less of it, and
    more runs wait for it. None: as fast as it can."""
    in_query: bool = True
    """Off: the query does not compact its state. A process of its own does, ``floodplain compact --watch``; without it runs
    accumulate, and lookups slow down."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            rate_of(self.budget)

    @property
    def bytes_per_s(self) -> int | None:
        """The budget as a number."""
        return None if self.budget is None else rate_of(self.budget)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Which past epochs stay readable. Each retained epoch holds on to the runs that later compactions replaced."""

    newest: int = 16
    """This many epochs, whatever their age."""
    every_ms: tuple[tuple[int, int], ...] = ((3_600_000, 60_000), (86_400_000, 3_600_000))
    """``(age, step)``: up to that age one epoch per step. The default keeps one a minute for an hour, one an hour for a day."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a store reads, writes and keeps its files. Each process passes its own; only ``key_groups`` is fixed."""

    key_groups: int = 1024
    """A power of two, fixed when the store is created. It bounds the number of slots; more key groups make manifests larger."""
    sync: bool = True
    """Off: a power failure can lose or tear the newest epochs of a store in a directory. A killed process loses nothing either
    way."""
    map: bool = True
    """Off: files of a directory, and of caches, are read into memory instead of being mapped. A file that another process
    truncates during a read is then an error; if it is mapped, it ends the process. It costs a copy of each chunk that a process
    reads and does not have in ``memory_bytes``."""
    mode: int | None = None
    """Permissions of new files in a directory and in caches, as in ``0o640``. New folders get ``x`` where the mode has ``r``.
    None: the umask of each process decides. Existing files are not changed."""
    compression: Compression = "auto"
    """Of new runs. ``auto``: none on a directory, where runs are memory-mapped; Zstandard on an object store, where bytes cross
    the network."""
    chunk_bytes: int = 0
    """Of new runs, uncompressed. Larger: fewer steps per lookup. Smaller: fewer bytes fetched and verified for one key. 0: 4 MiB
    on a directory, where epochs were 10% shorter than with 1 MiB, and 1 MiB on an object store."""
    inline_bytes: int = 64 << 10
    """Smaller runs of a task return inside its report and share one object with those of other tasks: fewer requests, larger
    reports. On an object store smaller files of output return as well, become one, and ride in the edit of their epoch."""
    checkpoint_every: int = 64
    """Log positions between two manifest checkpoints: opening reads at most about this many edits."""
    lease_ms: int = 30_000
    """How long a writer that stopped renewing its lease keeps others out. Safety never depends on it."""
    pin_ms: int = 300_000
    """How long a pin protects its snapshot unless it is renewed."""
    max_clock_ahead_ms: int = 3_600_000
    """How far processing time may be ahead of the store's clock, which shows in the time of a file that was just written. Beyond
    it, the store's time counts. Less: time to live is more exact under a wrong clock, but a store whose own clock is behind
    delays it. Costs one request at the start, and a few a minute while clocks differ by more."""
    window_bytes: int = 32 << 20
    """Decoded rows that a scan, diff, count, compaction or rewrite reads at a time. Its memory is a few times that, plus a chunk
    of each run; a larger chunk is read alone. More: fewer, larger steps. At most 1 GiB."""
    memory_bytes: int = 64 << 20
    """Decoded chunks that a process caches, of runs that are compressed or not mapped. Mapped runs, those in a cache included,
    need none: they are in the page cache."""
    epoch_bytes: int = 512 << 20
    """Rows of one epoch that a task has in memory at a time, as Arrow; as Python values they take several times that. More rows
    spill to the local disk and are processed some key groups at a time. Less: less memory, more reads of state."""
    prefetch_bytes: int = 64 << 20
    """Entries of a list, map or set (``prefetch="all"``) that a task has in memory at a time. Further keys are fetched in batches
    of this size as they are reached; a single map that is larger is read entry by entry. More: fewer, larger reads."""
    hide_misses: bool = True
    """Where reading needs remote requests, a task fetches all chunks that its keys need in the background, in one batch, and
    first processes keys whose state is at hand. It costs memory (``read_ahead_bytes``) and threads (``concurrent_reads``). Off: a
    task fetches a table when it first reads it, and waits. Results are the same."""
    read_ahead_bytes: int = 64 << 20
    """Decoded chunks that a task has fetched, or is fetching, before it uses them. More: longer waits are hidden. It is memory in
    addition to ``memory_bytes``."""
    concurrent_reads: int = 16
    """Requests for chunks that a task has under way in the background. More: faster, up to what network and store allow. Each
    takes a thread while there is something to fetch."""
    reserve_bytes: int = 4 << 20
    """Disk space that a directory reserves for a garbage collection on a full disk, which begins with writing an edit and some
    manifests. 0: none; on a full disk something else must be deleted first."""
    retry: RetrySettings = field(default_factory=RetrySettings)
    cache: CacheSettings | None = None
    tmpfs: CacheSettings | None = None
    """A second cache above ``cache``, in memory. Refused if the file system is smaller (containers often have 64 MB)."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    prices: Prices | None = None
    """What requests and storage cost, for ``cost`` of progress and queries. None: list prices of the object store's provider."""

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_mode(self.mode)
        if self.max_clock_ahead_ms < LEAST_CLOCK_AHEAD_MS:
            raise BadInput(
                f"max_clock_ahead_ms={self.max_clock_ahead_ms} is not possible: stores know the time to the second, so allow for "
                f"{LEAST_CLOCK_AHEAD_MS} or more"
            )
        for name in ("read_ahead_bytes", "concurrent_reads"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise BadInput(f"StoreSettings.{name} is {getattr(self, name)!r}: give a whole number from 1 on")
        if not isinstance(self.window_bytes, int) or not 1 <= self.window_bytes <= MOST_WINDOW_BYTES:
            raise BadInput(
                f"StoreSettings.window_bytes is {self.window_bytes!r}: give a whole number of bytes from 1 to {MOST_WINDOW_BYTES}"
            )


@dataclass(frozen=True, slots=True)
class Workers:
    """Settings of ``engine="workers"``: slots of operators stay in long-running Spark tasks, and rows reach them as Arrow."""

    count: int | None = None
    """How many workers. Each holds a core as long as the query runs. By default as many as there are slots, or as Spark has cores
    but one. That stays free for the jobs that bring rows; where workers read the input, they may hold all."""
    port: int = 0
    """Where the driver listens for workers, at ``spark.driver.bindAddress``. 0: any port that is free."""
    certificate: str | None = None
    """With ``key`` and ``authority``: files, at the same path on all hosts, for TLS between driver, workers and tasks that bring
    rows. Without them these prove to each other that they know a secret, and what follows is clear text."""
    key: str | None = field(default=None, repr=False)
    authority: str | None = None
    heartbeat_timeout_ms: int = 3000
    """A worker that is silent for longer is taken for lost, and the epoch is done again. Raise it if a library that you call lets
    no other Python thread run (it holds the GIL) for so long. It costs as long to miss a host that is cut off."""

    def __post_init__(self) -> None:
        if self.count is not None and (not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1):
            raise BadInput(f"Workers(count={self.count!r}) is not possible: use a number from 1 on")
        if len({self.certificate is None, self.key is None, self.authority is None}) > 1:
            raise BadInput("Workers: certificate, key and authority go together: give all three, or none")
        if not isinstance(self.heartbeat_timeout_ms, int) or isinstance(self.heartbeat_timeout_ms, bool):
            raise BadInput(f"Workers(heartbeat_timeout_ms={self.heartbeat_timeout_ms!r}) is not possible: use a whole number")
        if self.heartbeat_timeout_ms < LEAST_HEARTBEAT_TIMEOUT_MS:
            raise BadInput(
                f"Workers(heartbeat_timeout_ms={self.heartbeat_timeout_ms}) is not possible: workers are heard of twice a "
                f"second, so use {LEAST_HEARTBEAT_TIMEOUT_MS} or more"
            )


def check_mode(mode: object) -> None:
    """Raises ``BadInput`` unless these are permissions that files of a state can have."""
    if not isinstance(mode, int) or isinstance(mode, bool) or mode & ~0o666:
        wrong = "permissions of files are read and write, for owner, group and others"
    elif mode & 0o600 != 0o600:
        wrong = "the owner must be able to read and write what it has written"
    elif mode & 0o222 & ~((mode & 0o444) >> 1):
        wrong = "who may write must be able to read"
    else:
        return
    shown = oct(mode) if isinstance(mode, int) and not isinstance(mode, bool) else repr(mode)
    raise BadInput(f"mode={shown} is not possible: {wrong}; give it in octal, as in StoreSettings(mode=0o640)")


_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[kmgt]?)(?P<binary>i?)b?\Z", re.IGNORECASE)


def rate_of(text: str) -> int:
    """``"50 MB/s"`` as bytes per second. Raises ``BadInput``."""
    size, separator, unit = text.strip().rpartition("/")
    if not separator or unit.strip() != "s":
        raise BadInput(f"{text!r} is not a rate: write it as in 50MB/s")
    return size_of(size)


def size_of(text: str) -> int:
    """``"64MiB"``, ``"1.5 GB"`` or a plain number as bytes. Raises ``BadInput``."""
    match = _SIZE.match(text.strip())
    if match is None or (match["binary"] and not match["prefix"]):
        raise BadInput(f"{text!r} is not a size: write it as in 64MiB or 67108864")
    power = " kmgt".index(match["prefix"].lower() or " ")
    size_bytes = int(float(match["number"]) * (1024 if match["binary"] else 1000) ** power)
    if size_bytes < 1:
        raise BadInput(f"{text!r} is not a size: it must be at least one byte")
    return size_bytes
