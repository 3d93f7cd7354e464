"""The watermark of the kit: as Spark's, it follows from the rows of the epochs before."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import as_ms
from floodplain.pipeline.stream import SOURCE


class RowWatermark:
    """The newest event time of each source less the delay; of several sources the least, 0 for one that has had no rows."""

    def __init__(self) -> None:
        self._newest_ms: dict[str, int] = {}
        self.by_hand = False
        """Whether one was given: from then on rows move it no more."""

    def see(self, rows: pa.Table, column: str, sources: Collection[str]) -> None:
        """Rows of an epoch: they count for the next one. ``sources``: those that have this column."""
        for source in sources:
            mine = rows.filter(pc.equal(rows.column(SOURCE), source)) if source else rows
            newest = pc.max(as_ms(mine.column(column))).as_py() if len(mine) else None
            if newest is not None:
                self._newest_ms[source] = max(self._newest_ms.get(source, newest), newest)

    def watermark_ms(self, delay_ms: int, sources: Collection[str]) -> int:
        """That of the next epoch."""
        if self.by_hand or not sources:
            return 0
        return min(max(self._newest_ms.get(source, delay_ms) - delay_ms, 0) for source in sources)
