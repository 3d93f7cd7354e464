"""The queries of Nexmark with Floodplain's public API.

Each query reads its rows from the tables ``person``, ``auction`` and ``bid`` in Spark's own SQL, since what has no state is
Spark's business, and only the columns that it needs; what it gets is a stream for each. ``timed`` queries have a watermark: they
say something once it is final. The others say what is new or has changed since the last epoch.

    python -m examples.nexmark.queries q5 --events 200000
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import floodplain as fp
from examples.nexmark.oracle import Changes, side_input

DELAY = "4 seconds"
"""How late events may be."""
LONGEST = "20 seconds"
"""No auction is open for longer."""


@dataclass(frozen=True)
class Query:
    name: str
    title: str
    reads: Mapping[str, str]
    """The SQL of each stream that it reads."""
    build: Callable[..., fp.Stream]
    changes: Changes
    """How its output is to be taken together."""
    timed: bool

    def on(self, rows: fp.Stream) -> fp.Stream:
        """The query on what it reads: one stream, or one with several sources."""
        if self.timed:
            rows = rows.watermark("dateTime", DELAY)
        return self.build(*[rows.source(name) for name in self.reads] if len(self.reads) > 1 else [rows])

    def of(self, events: Any) -> fp.Stream:
        """The query on a DataFrame of events."""
        frames = {name: table(events, sql) for name, sql in self.reads.items()}
        return self.on(fp.stream(**frames) if len(frames) > 1 else fp.stream(*frames.values()))


QUERIES: dict[str, Query] = {}


def query(
    *, update: str = "", timed: bool = False, **reads: str
) -> Callable[[Callable[..., fp.Stream]], Callable[..., fp.Stream]]:
    """``update`` names the columns by which rows of its output replace each other; without, they never do."""

    def known(build: Callable[..., fp.Stream]) -> Callable[..., fp.Stream]:
        changes = Changes("update", tuple(update.split())) if update else Changes()
        QUERIES[build.__name__] = Query(build.__name__, build.__doc__ or "", reads, build, changes, timed)
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


# --- Queries without state


@query(bids="select auction, bidder, price, dateTime, extra from bid")
def q0(bids: fp.Stream) -> fp.Stream:
    """Pass through."""
    return bids


@query(bids="select auction, bidder, 0.908 * price as price, dateTime, extra from bid")
def q1(bids: fp.Stream) -> fp.Stream:
    """Currency conversion: each bid in euros."""
    return bids


@query(bids="select auction, price from bid where auction % 123 = 0")
def q2(bids: fp.Stream) -> fp.Stream:
    """Selection: bids for some auctions."""
    return bids


@query(
    bids="""
        select auction, bidder, price, dateTime, extra, cast(cast(dateTime as date) as string) as dt,
            substr(cast(dateTime as string), 12, 5) as hm
        from bid
    """
)
def q10(bids: fp.Stream) -> fp.Stream:
    """Log to files, by day and minute."""
    return bids


@query(bids="select auction, bidder, price, dateTime, value from bid join side_input on auction % 10000 = key")
def q13(bids: fp.Stream) -> fp.Stream:
    """Bounded side input: each bid with the value that a table has for its auction."""
    return bids


@query(
    bids="""
        select auction, bidder, 0.908 * price as price,
            case when hour(dateTime) between 8 and 18 then 'dayTime'
                when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
        from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000
    """
)
def q14(bids: fp.Stream) -> fp.Stream:
    """Calculation: expensive bids, the time of day, and how often a letter occurs."""
    return bids


@query(
    bids="""
        select auction, bidder, price, channel,
            case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3'
                else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
        from bid where lower(channel) in ('apple', 'google', 'facebook', 'baidu')
            or regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
    """
)
def q21(bids: fp.Stream) -> fp.Stream:
    """Channel id: from the name of the channel, or from the address."""
    return bids


@query(
    bids="""
        select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
            split_part(url, '/', 6) as dir3 from bid
    """
)
def q22(bids: fp.Stream) -> fp.Stream:
    """Folders of the address."""
    return bids
