"""Settings: frozen values, each with what it costs."""

from dataclasses import dataclass, field
from typing import Literal

from floodplain.errors import BadInput

LEAST_CLOCK_AHEAD_MS = 2_000
Compression = Literal["auto", "none", "lz4", "zstd"]

MOST_WINDOW_BYTES = 1 << 30
"""A window's rows are concatenated, those before and after a change together, and an Arrow string column ends at 2 GiB."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often and how long a tier is asked again after a passing fault."""

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
    """Kept across all processes that share the directory."""
    policy: Literal["lru", "frequency"] = "lru"
    """``frequency`` keeps what is read often through a scan that reads everything once; it costs a small sketch."""


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Which past epochs stay readable. Each retained epoch holds on to the runs that later compactions replaced."""

    newest: int = 16
    """This many epochs, whatever their age."""
    every_ms: tuple[tuple[int, int], ...] = ((3_600_000, 60_000), (86_400_000, 3_600_000))
    """``(age, step)``: up to that age one epoch per step. The default keeps one a minute for an hour, one an hour for a day."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    key_groups: int = 1024
    """Fixed when the store is created; a power of two. The finest grain of placement; more cost larger manifests."""
    sync: bool = True
    """Off: a power cut can lose or tear the newest epochs of a directory store. A killed process loses nothing either way."""
    map: bool = True
    """Off: files of a directory, and of caches, are read into memory of the process instead of being mapped. Then one that is cut
    short while it is read is an error and never ends the process, as on disks that others write to. It costs a copy of each chunk
    that is touched and not among ``memory_bytes``, in every process."""
    mode: int | None = None
    """Permissions of the files that are written to a directory, and to caches, as in ``0o640``; folders that are made have ``x``
    where these have ``r``. None: what the umask of each process leaves. What is there already is not changed."""
    compression: Compression = "auto"
    """Of new runs. ``auto``: none on a directory (runs are memory-mapped), zstd on an object store (bytes travel)."""
    chunk_bytes: int = 0
    """Of new runs, uncompressed. Larger chunks: fewer steps per lookup. Smaller: fewer bytes fetched and verified for one key.
    0: 4 MiB on a directory, where epochs were 10% shorter than with 1 MiB; 1 MiB on an object store, where chunks travel."""
    inline_bytes: int = 64 << 10
    """A task's runs below this return inside its report and share one object with those of the other tasks."""
    checkpoint_every: int = 64
    """Log positions between two manifest checkpoints: opening reads at most about this many edits."""
    lease_ms: int = 30_000
    """How long a silent writer keeps others out. Safety never depends on it."""
    pin_ms: int = 300_000
    """How long a reader's pin holds its snapshot unless renewed."""
    max_clock_ahead_ms: int = 3_600_000
    """How far processing time may be ahead of what the store shows: the time that it gives to a file that was just written.
    Beyond it the store's time counts. Less: rows live more exactly under a wrong clock, and a store whose own clock is behind
    slows them down. Costs one request at the start, and a few a minute while clocks differ by more."""
    window_bytes: int = 32 << 20
    """Rows, decoded, that a scan, a difference, a count, a compaction or a rewrite reads at a time. Bounds its memory, which is a
    few times that and a chunk of each run; a chunk that is larger is read alone. More: fewer, larger steps. At most 1 GiB."""
    memory_bytes: int = 64 << 20
    """Decoded chunks that a process keeps, of runs that are compressed or not mapped. Others need none of it: they live in the
    page cache."""
    epoch_bytes: int = 512 << 20
    """Rows of one epoch that a task holds at a time, as Arrow has them; as Python values they take several times that. What is
    beyond it waits on the local disk and is processed some key groups at a time. Less: less memory, more reads of state."""
    prefetch_bytes: int = 64 << 20
    """Entries of a list, map or set (``prefetch="all"``) that a task holds at a time. Keys that do not fit are fetched in further
    batches of this size as they are reached, and a map that alone is larger entry by entry. More: fewer, larger reads."""
    reserve_bytes: int = 4 << 20
    """Room that a directory has set aside, so that garbage can be collected when the disk is full: that begins with an edit and
    some manifests. It takes up so much. 0: none; then something else must be deleted first."""
    retry: RetrySettings = field(default_factory=RetrySettings)
    cache: CacheSettings | None = None
    tmpfs: CacheSettings | None = None
    """A second cache above ``cache``. Refused where the file system is smaller than asked for (containers often have 64 MB)."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_mode(self.mode)
        if self.max_clock_ahead_ms < LEAST_CLOCK_AHEAD_MS:
            raise BadInput(
                f"max_clock_ahead_ms={self.max_clock_ahead_ms} is not possible: stores know the time to the second, so allow for "
                f"{LEAST_CLOCK_AHEAD_MS} or more"
            )
        if not isinstance(self.window_bytes, int) or not 1 <= self.window_bytes <= MOST_WINDOW_BYTES:
            raise BadInput(
                f"StoreSettings.window_bytes is {self.window_bytes!r}: give a whole number of bytes from 1 to {MOST_WINDOW_BYTES}"
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
