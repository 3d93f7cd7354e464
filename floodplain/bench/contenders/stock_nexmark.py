"""The stateful queries of Nexmark in Spark's own streaming API, as far as it can express them.

Besides ``stock_spark``, this is the only module of ``bench`` that imports pyspark. Each query takes the streaming tables
``person``, ``auction`` and ``bid``, all with their watermark.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.streaming.query import StreamingQuery

CANNOT = {
    "q4": "the mean over a category of the best bids of auctions: aggregates that never close cannot be chained",
    "q6": "the mean over a seller's last ten auctions of their best bids: aggregates that never close cannot be chained",
}
"""Queries that Spark cannot express, and why; other than by transformWithState, which is a program and not a query."""


Tables = Mapping[str, DataFrame]


def tables(events: DataFrame, delay: str) -> dict[str, DataFrame]:
    """The three tables of a stream of events."""
    return {
        kind: events.where(F.col("kind") == kind).select("number", "dateTime", f"{kind}.*").withWatermark("dateTime", delay)
        for kind in ("person", "auction", "bid")
    }


def q3(nexmark: Tables) -> DataFrame:
    persons = nexmark["person"].where("state in ('OR', 'ID', 'CA')").select(F.col("id").alias("person"), "name", "city", "state")
    auctions = nexmark["auction"].where("category = 10").select("id", "seller")
    return auctions.join(persons, F.expr("seller = person")).select("name", "city", "state", "id")


def q5(nexmark: Tables) -> DataFrame:
    sliding = F.window("dateTime", "10 seconds", "2 seconds")
    counts = nexmark["bid"].groupBy(sliding, "auction").agg(F.count("*").alias("num"))
    # Chained window aggregates: all sliding windows with one end fall into one tumbling window, which has that end.
    ends = F.window(F.window_time("window"), "2 seconds").alias("ends")
    every = counts.groupBy(ends).agg(F.collect_list(F.struct("auction", "num")).alias("counted"))
    best = every.select("ends.end", F.explode(F.expr("filter(counted, c -> c.num = array_max(counted.num))")).alias("best"))
    window = (F.expr("end - interval 10 seconds").alias("window_start"), F.col("end").alias("window_end"))
    return best.select("best.*", *window)


def q7(nexmark: Tables) -> DataFrame:
    best = F.max_by(F.struct("auction", "price", "bidder", "dateTime", "extra"), F.struct("price", -F.col("number")))
    highest = nexmark["bid"].groupBy(F.window("dateTime", "10 seconds")).agg(best.alias("best"))
    return highest.select("best.*")


def q8(nexmark: Tables) -> DataFrame:
    tumbling = F.window("dateTime", "10 seconds")
    persons = nexmark["person"].select("id", "name", tumbling.alias("entered"))
    auctions = nexmark["auction"].select("seller", tumbling.alias("opened"))
    joined = persons.join(auctions, F.expr("id = seller and entered = opened"), "left_semi")
    return joined.select("id", "name", F.col("entered.start").alias("window_start"))


def q9(nexmark: Tables, longest: str) -> DataFrame:
    columns = ["id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category", "extra"]
    auctions = nexmark["auction"].select(*columns)
    bids = nexmark["bid"].select(
        *("auction", "bidder", "price", "number"), F.col("dateTime").alias("bid_dateTime"), F.col("extra").alias("bid_extra")
    )
    within = f"id = auction and bid_dateTime between dateTime and dateTime + interval {longest} and bid_dateTime <= expires"
    best = F.max_by(F.struct("bidder", "price", "bid_dateTime", "bid_extra"), _highest("price", "bid_dateTime", "number"))
    sold = [F.first(column).alias(column) for column in columns if column not in ("id", "dateTime")]
    won = auctions.join(bids, F.expr(within)).groupBy("id", "dateTime").agg(*sold, best.alias("best"))
    return won.select(*columns, "best.*")


def q11(nexmark: Tables) -> DataFrame:
    session = F.session_window("dateTime", "10 seconds").alias("session")
    counted = nexmark["bid"].groupBy(session, "bidder").agg(F.count("*").alias("bid_count"))
    window = (F.col("session.start").alias("window_start"), F.col("session.end").alias("window_end"))
    return counted.select("bidder", "bid_count", *window)


def q12(nexmark: Tables) -> DataFrame:
    arrived = nexmark["bid"].select("bidder", F.current_timestamp().alias("arrived"))
    counted = arrived.groupBy("bidder", F.window("arrived", "10 seconds")).agg(F.count("*").alias("bid_count"))
    return counted.select("bidder", "bid_count", F.col("window.start").alias("window_start"))


def q15(nexmark: Tables) -> DataFrame:
    return _with_day(nexmark["bid"]).groupBy("day").agg(*_counts(), *_distinct())


def q16(nexmark: Tables) -> DataFrame:
    bids = _with_day(nexmark["bid"]).withColumn("minute", F.date_format("dateTime", "HH:mm"))
    return bids.groupBy("channel", "day").agg(F.max("minute").alias("minute"), *_counts(), *_distinct())


def q17(nexmark: Tables) -> DataFrame:
    prices = [getattr(F, what)("price").alias(f"{what}_price") for what in ("min", "max", "avg", "sum")]
    return _with_day(nexmark["bid"]).groupBy("auction", "day").agg(*_counts(), *prices)


def q18(nexmark: Tables) -> DataFrame:
    bid = F.struct("price", "channel", "url", "dateTime", "extra")
    last = nexmark["bid"].groupBy("bidder", "auction").agg(F.max_by(bid, F.struct("dateTime", "number")).alias("last"))
    return last.select("auction", "bidder", "last.*")


def q19(nexmark: Tables) -> DataFrame:
    bid = F.struct("bidder", "price", "channel", "url", "dateTime", "extra")
    best = nexmark["bid"].groupBy("auction").agg(F.max_by(bid, _highest("price", "dateTime", "number"), 10).alias("best"))
    ranked = best.select("auction", F.posexplode("best").alias("place", "bid"))
    return ranked.select("auction", "bid.*", F.expr("place + 1L").alias("rank_number"))


def q20(nexmark: Tables) -> DataFrame:
    bids = nexmark["bid"].withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"}).drop("number")
    auctions = nexmark["auction"].withColumnsRenamed({"dateTime": "auction_dateTime", "extra": "auction_extra"}).drop("number")
    return bids.join(auctions.where("category = 10"), F.expr("auction = id")).drop("id")


def _with_day(bids: DataFrame) -> DataFrame:
    return bids.withColumn("day", F.date_format("dateTime", "yyyy-MM-dd"))


_RANKS = {"total": "true", "rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}


def _counts() -> list[Column]:
    return [F.count_if(F.expr(which)).alias(f"{rank}_bids") for rank, which in _RANKS.items()]


def _distinct() -> list[Column]:
    """Spark has no distinct counts on streams; the exact way is a set of all values."""
    return [
        F.size(F.collect_set(F.expr(f"case when {which} then {column} end"))).cast("long").alias(f"{rank}_{column}s")
        for column in ("bidder", "auction")
        for rank, which in _RANKS.items()
    ]


def _highest(price: str, at: str, number: str) -> Column:
    """The order for ``max_by``: the highest price, then the earliest, then the first to arrive."""
    return F.struct(F.col(price), -F.unix_micros(at), -F.col(number))


QUERIES: dict[str, Callable[..., DataFrame]] = {
    made.__name__: made for made in (q3, q5, q7, q8, q9, q11, q12, q15, q16, q17, q18, q19, q20)
}


KEYS = {
    "q12": ("bidder", "window_start"),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("auction", "bidder"),
    "q19": ("auction", "rank_number"),
}
"""The primary keys of queries that run in update mode; the others append."""


def start(query: str, delay: str, longest: str, settings: Mapping[str, str]) -> Callable[[DataFrame, Path], StreamingQuery]:
    """Starts a query over events. Each batch is published as a folder of Parquet files, named by its number."""

    def started(events: DataFrame, folder: Path) -> StreamingQuery:
        def publish(rows: DataFrame, number: int) -> None:
            rows.write.parquet(str(folder / "out" / f"{number:06d}"))

        made = QUERIES[query](tables(events, delay), **({"longest": longest} if query == "q9" else {}))
        spark = events.sparkSession
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            writing = made.writeStream.outputMode("update" if query in KEYS else "append").foreachBatch(publish)
            return writing.option("checkpointLocation", str(folder / "checkpoint")).start()
        finally:
            for name in settings:
                spark.conf.unset(name)

    return started
