"""The watermark of the pipeline kit. As on Spark, it is computed from the rows of earlier epochs."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.eventtime.times import as_ms
from floodplain.pipeline.stream import SOURCE


class RowWatermark:
    """The newest event time minus the delay. With several sources, the minimum over them; a source without rows counts as 0."""

    def __init__(self) -> None:
        self._newest_ms: dict[str, int] = {}
        self.manual = False
        """Whether the test has passed a watermark. From then on, rows no longer advance it."""

    def observe(self, rows: pa.Table, column: str, sources: Collection[str]) -> None:
        """Rows of an epoch. They advance the watermark of the next one. ``sources``: those that have this column."""
        for source in sources:
            of_source = rows.filter(pc.equal(rows.column(SOURCE), source)) if source else rows
            newest = pc.max(as_ms(of_source.column(column))).as_py() if len(of_source) else None
            if newest is not None:
                self._newest_ms[source] = max(self._newest_ms.get(source, newest), newest)

    def watermark_ms(self, delay_ms: int, sources: Collection[str]) -> int:
        """The watermark of the next epoch."""
        if self.manual or not sources:
            return 0
        return min(max(self._newest_ms.get(source, delay_ms) - delay_ms, 0) for source in sources)
