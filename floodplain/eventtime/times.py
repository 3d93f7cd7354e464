"""The times of an epoch, fixed when it begins. A task never reads a clock."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput

NONE_MS = -(1 << 62)
"""Before every event: no watermark yet."""
END_MS = 1 << 62
_MOST_MS = END_MS // 1000
"""After every event: nothing comes any more."""


def known_ms(at_ms: int) -> int | None:
    """A time as users see it: None for ``NONE_MS`` and ``END_MS``."""
    return None if at_ms in (NONE_MS, END_MS) else at_ms


class EpochTimes(msgspec.Struct, frozen=True):
    """In milliseconds."""

    processing_ms: int
    late_ms: int = NONE_MS
    """Rows of this time or older are late: the watermark of the epoch before."""
    watermark_ms: int = NONE_MS
    """Event-time timers up to here are due, after the rows of the epoch."""
    ends: bool = False
    """Whether all event-time timers fire after this epoch, because no more rows come."""

    def with_lateness(self, lateness_ms: int, before: Sequence[tuple[int, int]] = ()) -> "EpochTimes":
        """The times of an operator with allowed lateness: its watermark is that much lower.

        ``before`` as in ``late_cutoff_ms``.
        """
        late_ms, watermark_ms = (late_cutoff_ms(at, lateness_ms, before) for at in (self.late_ms, self.watermark_ms))
        return EpochTimes(self.processing_ms, late_ms, watermark_ms, self.ends)


def late_cutoff_ms(watermark_ms: int, lateness_ms: int, before: Sequence[tuple[int, int]]) -> int:
    """The event time up to which rows are too late at a watermark.

    ``before``: shorter lateness from before changes of the job, each with the watermark up to which it applies. So the cutoff
    never moves backwards when lateness grows: expired state is not created anew.
    """
    if watermark_ms == NONE_MS:
        return NONE_MS
    return max([watermark_ms - lateness_ms, *(min(watermark_ms, until) - shorter for until, shorter in before)])


def check_time(what: str, column: str, type_: pa.DataType) -> None:
    """Raises unless a column of this type can be a time: a timestamp, or integers, as milliseconds since 1970."""
    if not (pa.types.is_timestamp(type_) or pa.types.is_integer(type_)):
        raise BadInput(
            f"{what}: column {column} is of type {type_}, which is no time: make it a timestamp before, as in "
            f"timestamp({column}), or a long with milliseconds since 1970"
        )


def as_us(column: pa.ChunkedArray) -> pa.Array:
    """Event times as microseconds, for what compares rows with each other; integers are milliseconds."""
    whole = column.combine_chunks()
    if pa.types.is_timestamp(whole.type):
        return whole.cast(pa.timestamp("us", whole.type.tz)).cast(pa.int64())
    millis = whole.cast(pa.int64())
    micros = np.clip(pc.fill_null(millis, 0).to_numpy(zero_copy_only=False), -_MOST_MS, _MOST_MS) * 1000
    return pa.array(micros, mask=np.asarray(millis.is_null()))


def as_ms(column: pa.ChunkedArray) -> pa.Array:
    """Event times as milliseconds, rounded down; integers are milliseconds already."""
    whole = column.combine_chunks()
    if not pa.types.is_timestamp(whole.type):
        return whole.cast(pa.int64())
    micros = whole.cast(pa.timestamp("us", whole.type.tz)).cast(pa.int64())
    return pa.array(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False) // 1000, mask=np.asarray(micros.is_null()))


def ceil_ms(times: pa.Array) -> np.ndarray:
    """Times in milliseconds, rounded up; null is before all."""
    if not pa.types.is_timestamp(times.type):
        return times.cast(pa.int64()).fill_null(NONE_MS).to_numpy(zero_copy_only=False)
    micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
    return np.maximum(-(-micros.fill_null(NONE_MS).to_numpy() // 1000), NONE_MS)


def split_us(times_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole milliseconds, and the remaining microseconds; ``NONE_MS`` and ``END_MS`` stay as they are."""
    far = (times_us >= END_MS) | (times_us <= NONE_MS)
    return np.where(far, times_us, times_us // 1000), np.where(far, 0, times_us % 1000)


def joined_us(times_ms: np.ndarray, rest_us: np.ndarray) -> np.ndarray:
    """The inverse of ``split_us``."""
    far = (times_ms >= END_MS) | (times_ms <= NONE_MS)
    return np.where(far, times_ms, np.where(far, 0, times_ms) * 1000 + rest_us)
