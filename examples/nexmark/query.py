"""What a query is: the rows that it reads, what it makes of them, and how to read what comes out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import floodplain as fp
from examples.nexmark.oracle import Changes, side_input

DELAY = "4 seconds"
"""How late events may be."""


@dataclass(frozen=True)
class Query:
    name: str
    title: str
    reads: Mapping[str, str]
    """The SQL of each stream that it reads."""
    build: Callable[..., fp.Stream]
    changes: Changes
    """How its output is to be taken together."""
    time: Literal["", "event", "arrival"]
    """Of events, of their arrival, or none: then nothing waits for a time."""

    @property
    def closes(self) -> bool:
        """Whether its results come when the watermark has passed them."""
        return self.time == "event"

    def on(self, rows: fp.Stream) -> fp.Stream:
        """The query on what it reads: one stream, or one with several sources."""
        if self.time == "event":
            rows = rows.watermark("dateTime", DELAY)
        elif self.time == "arrival":
            rows = rows.watermark(fp.ingestion_time())
        return self.build(*[rows.source(name) for name in self.reads] if len(self.reads) > 1 else [rows])

    def of(self, events: Any) -> fp.Stream:
        """The query on a DataFrame of events."""
        frames = {name: table(events, sql) for name, sql in self.reads.items()}
        return self.on(fp.stream(**frames) if len(frames) > 1 else fp.stream(*frames.values()))


QUERIES: dict[str, Query] = {}
"""All that were declared, by name."""


def query(
    *, update: str = "", time: Literal["", "event", "arrival"] = "", **reads: str
) -> Callable[[Callable[..., fp.Stream]], Callable[..., fp.Stream]]:
    """``update`` names the columns by which rows of its output replace each other; without, they never do."""

    def known(build: Callable[..., fp.Stream]) -> Callable[..., fp.Stream]:
        changes = Changes("update", tuple(update.split())) if update else Changes()
        QUERIES[build.__name__] = Query(build.__name__, build.__doc__ or "", reads, build, changes, time)
        return build

    return known


def table(events: Any, sql: str) -> Any:
    """Rows of events in SQL over the tables ``person``, ``auction``, ``bid`` and ``side_input``."""
    spark = events.sparkSession
    for kind in ("person", "auction", "bid"):
        events.where(f"kind = '{kind}'").select("number", "dateTime", f"{kind}.*").createOrReplaceTempView(kind)
    if "side_input" in sql:
        spark.createDataFrame(side_input()).createOrReplaceTempView("side_input")
    return spark.sql(sql)
