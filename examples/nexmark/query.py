"""The definition of a query: its input rows, its pipeline, and the mode of its output."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import floodplain as fp
from examples.nexmark.oracle import Changes

DELAY = "4 seconds"
"""How late events may be."""


@dataclass(frozen=True)
class Query:
    name: str
    title: str
    reads: str
    """The rows that it reads, in SQL."""
    build: Callable[..., fp.Stream]
    changes: Changes
    """The mode of its output."""
    time: Literal["", "event", "arrival"]
    """Event time, ingestion time, or no watermark."""
    partition_by: tuple[str, ...] = ()
    """The partition columns of its output files."""

    @property
    def closes(self) -> bool:
        """Whether it emits results only once the watermark has passed them."""
        return self.time == "event"

    def on(self, rows: fp.Stream) -> fp.Stream:
        """The query on a stream of its input rows."""
        if self.time == "event":
            rows = rows.watermark("dateTime", DELAY)
        elif self.time == "arrival":
            rows = rows.watermark(fp.ingestion_time())
        return self.build(rows)

    def of(self, events: Any) -> fp.Stream:
        """The query on a DataFrame of events."""
        return self.on(fp.stream(table(events, self.reads)))

    def into(self, events: Any, folder: Path) -> Any:
        """The query on a DataFrame of events, with its output as Parquet files, ready to start."""
        return self.of(events).write("parquet", path=str(folder), partition_by=self.partition_by)


QUERIES: dict[str, Query] = {}
"""All declared queries, by name."""


def query(
    reads: str, *, update: str = "", time: Literal["", "event", "arrival"] = "", partition_by: str = ""
) -> Callable[[Callable[..., fp.Stream]], Callable[..., fp.Stream]]:
    """Declares a query. ``update``: the primary key of its output; without it, the output is append-only. ``partition_by``: the
    partition columns of its output files."""

    def declared(build: Callable[..., fp.Stream]) -> Callable[..., fp.Stream]:
        changes = Changes("update", tuple(update.split())) if update else Changes()
        folders = tuple(partition_by.split())
        QUERIES[build.__name__] = Query(build.__name__, build.__doc__ or "", reads, build, changes, time, folders)
        return build

    return declared


def table(events: Any, sql: str) -> Any:
    """Rows of events in SQL over the tables ``events``, ``person``, ``auction`` and ``bid``."""
    events.createOrReplaceTempView("events")
    for kind in ("person", "auction", "bid"):
        events.where(f"kind = '{kind}'").select("number", "dateTime", f"{kind}.*").createOrReplaceTempView(kind)
    return events.sparkSession.sql(sql)
