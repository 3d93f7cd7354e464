"""The expected answer of each query in SQL, computed by DuckDB over all events at once.

A stream's output is compared with it as a multiset of rows, after folding the changelog: in mode ``update`` the newest row of
each key counts, in mode ``retract`` the weights of equal rows add up.

Queries whose answer depends on more than the events, and how it is decided here:

* q4, q6, q9: an auction is won by its highest bid, of equal ones by the earliest, then by the first to arrive.
* q6: the last ten auctions of a seller are those that expired last, then those with the highest price.
* q7: of equal bids the first to arrive, so one bid for each window.
* q12: windows of processing time do not follow from the events. The check is that each bidder's counts add up to their bids; on
  the test kit, which controls the clock, the windows are checked, too.
* q4, q6, q15 to q19: intermediate output depends on which epochs events are in; the answer is the final state.
* q18: of two bids with the same time the later to arrive is the last. q19: bids of the same price rank by time, then by arrival.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

_TABLES = {
    "person": "id name emailAddress creditCard city state extra",
    "auction": "id itemName description initialBid reserve expires seller category extra",
    "bid": "auction bidder price channel url extra",
}
_RANKS = {"total": "true", "rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}
_COUNTS = ", ".join(f"count(*) filter (where {which}) as {rank}_bids" for rank, which in _RANKS.items())
_DISTINCT = ", ".join(
    f"count(distinct {column}) filter (where {which}) as {rank}_{column}s"
    for column in ("bidder", "auction")
    for rank, which in _RANKS.items()
)
_DAY = "strftime(dateTime, '%Y-%m-%d') as day"
_WINNERS = """
    select a.*, b.auction, b.bidder, b.price, b.dateTime as bid_dateTime, b.extra as bid_extra
    from auction a join bid b on a.id = b.auction and b.dateTime between a.dateTime and a.expires
    qualify row_number() over (partition by a.id order by b.price desc, b.dateTime, b.number) = 1
"""
_CHANNEL_ID = r"nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"

SQL = {
    "q0": "select auction, bidder, price, dateTime, extra from bid",
    "q1": "select auction, bidder, 0.908 * price as price, dateTime, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    "q4": f"select category, avg(price) as final from ({_WINNERS}) group by category",
    "q5": """
        select auction, count(*) as num, make_timestamp(window_ms * 1000) as window_start,
            make_timestamp((window_ms + 10000) * 1000) as window_end
        from (
            select auction, unnest(generate_series(epoch_ms(dateTime) // 2000 * 2000 - 8000, epoch_ms(dateTime), 2000))
                as window_ms from bid
        )
        group by auction, window_ms
        qualify count(*) = max(count(*)) over (partition by window_ms)
    """,
    "q6": f"""
        select seller, avg(price) as avg_price
        from (select * from ({_WINNERS}) qualify row_number() over (partition by seller order by expires desc, price desc) <= 10)
        group by seller
    """,
    "q7": """
        select auction, price, bidder, dateTime, extra from bid
        qualify row_number() over (partition by epoch_ms(dateTime) // 10000 order by price desc, number) = 1
    """,
    "q8": """
        select distinct p.id, p.name, make_timestamp(epoch_ms(p.dateTime) // 10000 * 10000000) as window_start
        from person p join auction a on p.id = a.seller and epoch_ms(p.dateTime) // 10000 = epoch_ms(a.dateTime) // 10000
    """,
    "q9": f"""
        select id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            bidder, price, bid_dateTime, bid_extra from ({_WINNERS})
    """,
    "q10": """
        select auction, bidder, price, dateTime, extra, strftime(dateTime, '%Y-%m-%d') as dt, strftime(dateTime, '%H:%M') as hm
        from bid
    """,
    "q11": """
        select bidder, count(*) as bid_count, min(dateTime) as window_start, max(dateTime) + interval 10 seconds as window_end
        from (
            select bidder, dateTime, sum(starts) over (partition by bidder order by dateTime, number) as session
            from (
                select *, (dateTime - lag(dateTime) over (partition by bidder order by dateTime, number)
                    <= interval 10 seconds) is not true as starts
                from bid
            )
        )
        group by bidder, session
    """,
    "q12": "select bidder, count(*) as bid_count from bid group by bidder",
    "q13": """
        select auction, bidder, price, dateTime, value from bid join side_input on auction % 10000 = key
    """,
    "q14": """
        select auction, bidder, 0.908 * price as price,
            case when hour(dateTime) between 8 and 18 then 'dayTime'
                when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, len(extra) - len(replace(extra, 'c', '')) as c_counts
        from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000
    """,
    "q15": f"select {_DAY}, {_COUNTS}, {_DISTINCT} from bid group by day",
    "q16": f"""
        select channel, {_DAY}, max(strftime(dateTime, '%H:%M')) as minute, {_COUNTS}, {_DISTINCT} from bid group by channel, day
    """,
    "q17": f"""
        select auction, {_DAY}, {_COUNTS}, min(price) as min_price, max(price) as max_price, avg(price) as avg_price,
            sum(price)::bigint as sum_price
        from bid group by auction, day
    """,
    "q18": """
        select auction, bidder, price, channel, url, dateTime, extra from bid
        qualify row_number() over (partition by bidder, auction order by dateTime desc, number desc) = 1
    """,
    "q19": """
        select auction, bidder, price, channel, url, dateTime, extra,
            row_number() over (partition by auction order by price desc, dateTime, number) as rank_number
        from bid qualify rank_number <= 10
    """,
    "q20": """
        select b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime as bid_dateTime, b.extra as bid_extra, a.itemName,
            a.description, a.initialBid, a.reserve, a.dateTime as auction_dateTime, a.expires, a.seller, a.category,
            a.extra as auction_extra
        from bid b join auction a on b.auction = a.id where a.category = 10
    """,
    "q21": f"""
        select auction, bidder, price, channel,
            case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3'
                else {_CHANNEL_ID} end as channel_id
        from bid where {_CHANNEL_ID} is not null or lower(channel) in ('apple', 'google', 'facebook', 'baidu')
    """,
    "q22": """
        select auction, bidder, price, channel,
            split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2, split_part(url, '/', 6) as dir3 from bid
    """,
}
"""SQL over the tables ``person``, ``auction``, ``bid`` and ``side_input``; times are without time zone."""


@dataclass(frozen=True)
class Changes:
    """The output mode of a stream: how its changelog is folded into a result."""

    kind: str = "append"
    """``append``, ``update`` (the newest row of each key counts) or ``retract`` (weights add up)."""
    key: tuple[str, ...] = ()


class Oracle:
    """DuckDB over these events: a table, or names of Parquet files."""

    def __init__(self, events: "pa.Table | Sequence[str]", *, threads: int = 1) -> None:
        self.connection = duckdb.connect(config={"threads": threads})
        self.connection.execute("set timezone = 'UTC'")
        if isinstance(events, pa.Table):
            self.connection.register("events", events)
        else:
            self.connection.read_parquet(list(events)).create_view("events")
        for kind, columns in _TABLES.items():
            picked = ", ".join(_picked(kind, column) for column in columns.split())
            self.connection.execute(
                f"create view {kind} as select number, epoch_us(dateTime)::bigint as at_us, make_timestamp(at_us) as dateTime, "
                f"{picked} from events where kind = '{kind}'"
            )
        self.connection.register("side_input", side_input())

    def sql(self, text: str) -> pa.Table:
        return self.connection.sql(text).to_arrow_table()

    def answer(self, query: str) -> pa.Table:
        return self.sql(SQL[query])

    def differences(self, query: str, epochs: Iterable[pa.Table], changes: Changes) -> list[dict[str, Any]]:
        """Rows whose multiplicity is wrong, with ``too_many`` (negative if too few); empty if the output is right.

        ``epochs``: the output of the stream, epoch by epoch. Columns that the answer does not have are ignored.
        """
        filled = [rows for rows in epochs if len(rows)]
        wanted = f"({SQL[query]})"
        if not filled:
            return self.sql(f"select -1 as too_many, * from {wanted}").to_pylist()
        numbered = [rows.append_column("epoch", pa.array([number] * len(rows))) for number, rows in enumerate(filled)]
        self.connection.register("published", pa.concat_tables(numbered))
        columns = self.connection.sql(wanted)
        plain = ", ".join(_plain(name, str(kind)) for name, kind in zip(columns.columns, columns.types, strict=True))
        rows, weight = "from published", "1"
        if changes.kind == "update":
            rows += f" qualify rank() over (partition by {', '.join(changes.key)} order by epoch desc) = 1"
        if changes.kind == "retract":
            weight = "weight"
        if query == "q12":
            rows = f"select bidder, sum(bid_count) as bid_count from ({rows}) group by bidder"
        return self.sql(
            f"select sum(weight)::bigint as too_many, * exclude (weight) from (select {plain}, {weight} as weight from ({rows}) "
            f"union all select {plain}, -1 from {wanted}) group by all having too_many <> 0"
        ).to_pylist()


def published(folder: Path) -> list[pa.Table]:
    """The output of Floodplain's Parquet sink, epoch by epoch; partition columns are text."""
    files: dict[int, list[pa.Table]] = {}
    for path in sorted(folder.rglob("epoch-*.parquet")):
        rows = pq.read_table(path, partitioning=None)
        for name, _, value in (part.partition("=") for part in path.relative_to(folder).parts[:-1]):
            rows = rows.append_column(name, pa.array([unquote(value)] * len(rows)))
        files.setdefault(int(path.name.split("-")[1]), []).append(rows)
    return [pa.concat_tables(files[epoch]) for epoch in sorted(files)]


def side_input(keys: int = 10_000) -> pa.Table:
    """The lookup table of q13."""
    return pa.table({"key": list(range(keys)), "value": [f"value {key}" for key in range(keys)]})


def _picked(kind: str, column: str) -> str:
    value = f"{kind}.{column}"
    return f"make_timestamp(epoch_us({value})) as {column}" if column == "expires" else f"{value} as {column}"


def _plain(name: str, kind: str) -> str:
    """The column in a comparable form: times without time zone, decimals and floating point rounded to six places."""
    if kind == "TIMESTAMP":
        return f"make_timestamp(epoch_us({name})) as {name}"
    if kind == "DOUBLE" or kind.startswith("DECIMAL"):
        return f"round({name}::double, 6) as {name}"
    return f"{name}::{kind} as {name}"
