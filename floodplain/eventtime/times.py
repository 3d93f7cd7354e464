"""The times of an epoch, fixed when it begins. A task never reads a clock."""

import msgspec

NONE_MS = -(1 << 62)
"""Before every event: no watermark yet."""


class EpochTimes(msgspec.Struct, frozen=True):
    """In milliseconds."""

    processing_ms: int
    late_ms: int = NONE_MS
    """Rows older than this are late: the watermark of the epoch before."""
    watermark_ms: int = NONE_MS
    """Event-time timers up to here are due, after the rows of the epoch."""
