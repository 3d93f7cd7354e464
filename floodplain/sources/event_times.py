"""Event times of the rows that pass Spark's watermark operator, as Spark measures them."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class EventTimes(msgspec.Struct, frozen=True):
    """In milliseconds, rounded down. A row without a time counts as one of 1970-01-01, as in Spark."""

    count: int = 0
    newest_ms: int = 0
    oldest_ms: int = 0
    mean_ms: float = 0.0

    @classmethod
    def of(cls, column: pa.Array) -> "EventTimes":
        """``column``: of timestamps in microseconds."""
        if not len(column):
            return cls()
        times_ms = np.asarray(pc.fill_null(column.view(pa.int64()), 0)) // 1000
        return cls(len(column), int(times_ms.max()), int(times_ms.min()), float(times_ms.mean()))

    def merged(self, other: "EventTimes") -> "EventTimes":
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        mean_ms = self.mean_ms + (other.mean_ms - self.mean_ms) * other.count / count
        return EventTimes(count, max(self.newest_ms, other.newest_ms), min(self.oldest_ms, other.oldest_ms), mean_ms)
