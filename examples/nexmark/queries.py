"""The queries of Nexmark with Floodplain's public API.

Each selects the columns that it needs in Spark SQL: from the table ``bid`` or, if it joins events of two kinds, from ``events``,
so that each event is read once. Queries with ``time="event"`` have a watermark and emit final results. The others emit what is
new or has changed since the last epoch; ``update`` names the primary key of their output.
"""

from typing import Any

import floodplain as fp
from examples.nexmark.oracle import side_input
from examples.nexmark.query import DELAY, QUERIES, query

__all__ = ["DELAY", "LONGEST", "QUERIES"]

LONGEST = "20 seconds"
"""The maximal duration of an auction."""


# --- Queries without state

BID = "select auction, bidder, price, dateTime, extra from bid"


@query(BID)
def q0(bids: fp.Stream) -> fp.Stream:
    """Pass through."""
    return bids


@query(BID)
def q1(bids: fp.Stream) -> fp.Stream:
    """Currency conversion: each bid in euros."""
    return bids.with_column("price", "0.908 * price")


@query("select auction, price from bid")
def q2(bids: fp.Stream) -> fp.Stream:
    """Selection: bids for some auctions."""
    return bids.where("auction % 123 = 0")


@query(BID, partition_by="dt hm")
def q10(bids: fp.Stream) -> fp.Stream:
    """Log to files, by day and minute."""
    return bids.with_column("dt", "date_format(dateTime, 'yyyy-MM-dd')").with_column("hm", "date_format(dateTime, 'HH:mm')")


@query("select auction, bidder, price, dateTime from bid")
def q13(bids: fp.Stream) -> fp.Stream:
    """Bounded side input: each bid with the value of its auction in a static table."""

    def with_value(rows: Any) -> Any:
        table = rows.sparkSession.createDataFrame(side_input())
        return rows.join(table, rows.auction % 10_000 == table.key).drop("key")

    return bids.transform(with_value)


HOUR = "hour(dateTime)"


@query(BID)
def q14(bids: fp.Stream) -> fp.Stream:
    """Calculation: expensive bids, the time of day, and how often a letter occurs."""
    expensive = bids.with_column("price", "0.908 * price").where("price > 1000000 and price < 50000000")
    time_type = (
        f"case when {HOUR} between 8 and 18 then 'dayTime' when {HOUR} <= 6 or {HOUR} >= 20 then 'nightTime' else 'otherTime' end"
    )
    counts = "length(extra) - length(replace(extra, 'c', '')) as c_counts"
    return expensive.select("auction", "bidder", "price", "dateTime", "extra", f"{time_type} as bidTimeType", counts)


@query("select auction, bidder, price, channel, url from bid")
def q21(bids: fp.Stream) -> fp.Stream:
    """Channel id: from the name of the channel, or from the URL."""
    named = "case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3' end"
    in_url = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
    with_id = bids.select("auction", "bidder", "price", "channel", channel_id=f"coalesce({named}, {in_url})")
    return with_id.where("channel_id is not null")


@query("select auction, bidder, price, channel, url from bid")
def q22(bids: fp.Stream) -> fp.Stream:
    """URL directories."""
    folders = {f"dir{number}": f"split_part(url, '/', {number + 3})" for number in (1, 2, 3)}
    return bids.select("auction", "bidder", "price", "channel", **folders)


# --- Windows, and top N per window


@query("select auction, dateTime from bid", time="event")
def q5(bids: fp.Stream) -> fp.Stream:
    """Hot items: the auctions with the most bids in the last ten seconds, every two seconds."""
    counts = bids.key_by("auction").window(fp.sliding("10 seconds", "2 seconds")).agg(num=fp.count())
    by_window = counts.key_by("window_start", "window_end")
    return by_window.top(1, by="num desc", ties=True, mode="append", until="window_end", rank=None)


@query("select auction, bidder, price, dateTime, extra, price * 68719476736 - number as worth from bid", time="event")
def q7(bids: fp.Stream) -> fp.Stream:
    """Highest bid of every ten seconds; of equal ones the first to arrive."""
    columns = ("auction", "bidder", "price", "dateTime", "extra")
    return bids.window(fp.tumbling("10 seconds")).agg(**{column: fp.max_by(column, "worth") for column in columns})


@query("select bidder, dateTime from bid", time="event")
def q11(bids: fp.Stream) -> fp.Stream:
    """User sessions: the number of bids per bidder and session, with a gap of ten seconds."""
    return bids.key_by("bidder").window(fp.session("10 seconds")).agg(bid_count=fp.count())


@query("select bidder from bid", time="arrival", update="bidder window_start")
def q12(bids: fp.Stream) -> fp.Stream:
    """Bids of each bidder in ten seconds of processing time, with early results in every epoch."""
    return bids.key_by("bidder").window(fp.tumbling("10 seconds"), early=fp.every_epoch()).agg(bid_count=fp.count())


# --- Running aggregates

RANKS = "price < 10000 as rank1, price >= 10000 and price < 1000000 as rank2, price >= 1000000 as rank3"
DAY = "cast(cast(dateTime as date) as string) as day"
MINUTE = "lpad(cast(hour(dateTime) as string), 2, '0') || ':' || lpad(cast(minute(dateTime) as string), 2, '0') as minute"
BIDS = {
    "total_bids": fp.count(),
    "rank1_bids": fp.count(where="rank1"),
    "rank2_bids": fp.count(where="rank2"),
    "rank3_bids": fp.count(where="rank3"),
}
DISTINCT = {
    "total_bidders": fp.count_distinct("bidder"),
    "rank1_bidders": fp.count_distinct("bidder", where="rank1"),
    "rank2_bidders": fp.count_distinct("bidder", where="rank2"),
    "rank3_bidders": fp.count_distinct("bidder", where="rank3"),
    "total_auctions": fp.count_distinct("auction"),
    "rank1_auctions": fp.count_distinct("auction", where="rank1"),
    "rank2_auctions": fp.count_distinct("auction", where="rank2"),
    "rank3_auctions": fp.count_distinct("auction", where="rank3"),
}


@query(f"select bidder, auction, {DAY}, {RANKS} from bid", update="day")
def q15(bids: fp.Stream) -> fp.Stream:
    """Bidding statistics of each day: how many bids, bidders and auctions, by price."""
    return bids.key_by("day").agg(**BIDS, **DISTINCT)


@query(f"select channel, bidder, auction, {DAY}, {MINUTE}, {RANKS} from bid", update="channel day")
def q16(bids: fp.Stream) -> fp.Stream:
    """Channel statistics: the same of each channel and day, and the last minute that had a bid."""
    return bids.key_by("channel", "day").agg(minute=fp.max("minute"), **BIDS, **DISTINCT)


@query(f"select auction, price, {DAY}, {RANKS} from bid", update="auction day")
def q17(bids: fp.Stream) -> fp.Stream:
    """Auction statistics of each day: bids by price, and the prices."""
    return bids.key_by("auction", "day").agg(
        **BIDS, min_price=fp.min("price"), max_price=fp.max("price"), avg_price=fp.avg("price"), sum_price=fp.sum("price")
    )


# --- Latest row and top N per key


@query("select auction, bidder, price, channel, url, dateTime, extra, number from bid", update="auction bidder")
def q18(bids: fp.Stream) -> fp.Stream:
    """The last bid of each bidder for each auction."""
    return bids.key_by("bidder", "auction").last(by="dateTime, number")


@query("select auction, bidder, price, channel, url, dateTime, extra, number from bid", update="auction rank_number")
def q19(bids: fp.Stream) -> fp.Stream:
    """The ten highest bids for each auction."""
    return bids.key_by("auction").top(10, by="price desc, dateTime, number", rank="rank_number")


# --- Joins


@query(
    """
        select kind, auction.id, auction.seller, auction.category, person.id as person, person.name, person.city, person.state
        from events
    """
)
def q3(events: fp.Stream) -> fp.Stream:
    """Local item suggestion: who sells in three states, and what."""
    auctions = events.where("kind = 'auction'").where("category = 10").select("id", "seller")
    persons = events.where("kind = 'person'").where("state in ('OR', 'ID', 'CA')").select("person", "name", "city", "state")
    return auctions.join(persons, on={"seller": "person"})


@query("select kind, dateTime, person.id, person.name, auction.seller from events", time="event")
def q8(events: fp.Stream) -> fp.Stream:
    """New users: who entered and opened an auction in the same ten seconds."""
    persons = events.where("kind = 'person'").select("id", "name", "dateTime")
    auctions = events.where("kind = 'auction'").select("seller", "dateTime")
    return persons.join(auctions, on={"id": "seller"}, how="semi", window=fp.tumbling("10 seconds"))


ITEM = """
    auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve, auction.expires, auction.seller,
    auction.category
"""


@query(
    f"""
        select kind, dateTime, {ITEM}, auction.extra as auction_extra, bid.auction, bid.bidder, bid.price, bid.channel, bid.url,
            bid.extra as bid_extra
        from events
    """
)
def q20(events: fp.Stream) -> fp.Stream:
    """Each bid with its auction, of one category."""
    bid = events.where("kind = 'bid'")
    bids = bid.select("auction", "bidder", "price", "channel", "url", "bid_extra", bid_dateTime="dateTime")
    item = ("id", "itemName", "description", "initialBid", "reserve", "expires", "seller", "category", "auction_extra")
    auctions = events.where("kind = 'auction'").where("category = 10").select(*item, auction_dateTime="dateTime")
    return bids.join(auctions, on={"auction": "id"})


# --- Winning bids of closed auctions

OFFER = "bid.auction, bid.price, number"


def winners(events: fp.Stream, item: tuple[str, ...], bid: tuple[str, ...] = ()) -> fp.Stream:
    """Each auction with its highest bid, once it is closed. ``item``, ``bid``: further columns of auction and bid to keep."""
    auctions = events.where("kind = 'auction'").select("id", "dateTime", "expires", *item)
    bids = events.where("kind = 'bid'").select("auction", "price", "number", *bid, bid_dateTime="dateTime")
    offered = auctions.join(bids, on={"id": "auction"}, within=("0 seconds", LONGEST), times=("dateTime", "bid_dateTime"))
    in_time = offered.where("bid_dateTime <= expires")
    return in_time.key_by("id").top(1, by="price desc, bid_dateTime, number", mode="append", until="expires", rank=None)


@query(
    f"select kind, dateTime, auction.id, auction.category, auction.expires, {OFFER} from events", time="event", update="category"
)
def q4(events: fp.Stream) -> fp.Stream:
    """Average price for a category, of the auctions that are closed."""
    return winners(events, ("category",)).key_by("category").agg(final=fp.avg("price"))


@query(f"select kind, dateTime, auction.id, auction.seller, auction.expires, {OFFER} from events", time="event", update="seller")
def q6(events: fp.Stream) -> fp.Stream:
    """Average selling price of each seller, of their last ten auctions that are closed."""
    last_ten = winners(events, ("seller",)).key_by("seller").agg(prices=fp.top_k("price", 10, by="expires"))
    return last_ten.transform(
        lambda df: df.selectExpr("seller", "aggregate(prices, 0D, (sum, price) -> sum + price) / size(prices) as avg_price")
    )


@query(
    f"select kind, dateTime, {ITEM}, auction.extra, bid.bidder, bid.extra as bid_extra, {OFFER} from events",
    time="event",
)
def q9(events: fp.Stream) -> fp.Stream:
    """Winning bids: each auction with its highest bid."""
    item = ("itemName", "description", "initialBid", "reserve", "seller", "category", "extra")
    return winners(events, item, ("bidder", "bid_extra"))
