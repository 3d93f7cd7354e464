"""Events of an online auction: persons, auctions and bids, as Nexmark describes them.

Event number i is a function of the seed and i only. So a stream is the same in every run, and any slice of it can be generated
by itself. There is no state and no sequential random number generator: each draw is a hash of (seed, which draw, i).

All events are rows of one table, in the order of arrival: ``number``, ``kind``, ``dateTime``, and the structs ``person``,
``auction`` and ``bid``, of which only that of its kind is not null. Unlike three streams, one stream has one order and one
watermark, as a topic of a broker has. A Parquet reader reads only the columns that a query needs, so a query over bids pays
next to nothing for the other two.
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TIME = pa.timestamp("us", "UTC")
TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": TIME}
PERSON = "id long, name string, emailAddress string, creditCard string, city string, state string, extra string"
AUCTION = (
    "id long, itemName string, description string, initialBid long, reserve long, expires timestamp, seller long, category long, "
    "extra string"
)
BID = "auction long, bidder long, price long, channel string, url string, extra string"
ROWS = f"number long, kind string, dateTime timestamp, person struct<{PERSON}>, auction struct<{AUCTION}>, bid struct<{BID}>"
"""The columns of an event, as Spark DDL."""


def fields(columns: str) -> list[pa.Field]:
    """Arrow fields of columns that are no structs."""
    return [pa.field(name, TYPES[kind]) for name, kind in map(str.split, columns.split(","))]


SCHEMA = pa.schema(
    [
        *fields("number long, kind string, dateTime timestamp"),
        *(
            pa.field(kind, pa.struct(fields(columns)))
            for kind, columns in (("person", PERSON), ("auction", AUCTION), ("bid", BID))
        ),
    ]
)
KINDS = ("person", "auction", "bid")
FIRST_ID = 1000
FIRST_CATEGORY = 10
CATEGORIES = 5
LEAD = 10
"""Ids that events may refer to before the event of that person or auction: as if events had been swapped."""
BATCH = 100
"""One in this many consecutive auctions, sellers or bidders is the hot one."""
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CLOSING_EPOCHS = 2
FIRST_MTIME_S = 1_700_000_000
ROW_GROUPS = 4
"""Row groups per file, so that several tasks can read it."""
POOL = 1 << 14
"""The number of different strings of a kind."""
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")


@dataclass(frozen=True)
class Nexmark:
    """The parameters of the stream; the defaults are Nexmark's."""

    seed: int = 1
    rate: float = 10_000.0
    """Events per second of event time."""
    start_ms: int = 1_767_225_600_000
    """Event time of event 0: the first minute of 2026."""
    disorder_ms: int = 0
    """How far an event's time may be behind the time of its position in the stream."""
    disorder_share: float = 0.1
    """The share of events that are out of order."""
    persons: int = 1
    auctions: int = 3
    bids: int = 46
    """Persons, auctions and bids in each cycle of events."""
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    hot_auction_ratio: int = 2
    hot_seller_ratio: int = 4
    hot_bidder_ratio: int = 4
    """Ratio n: all but one in n bids are for the hot auction (and likewise for sellers and bidders); 1: none is hot."""
    in_flight_auctions: int = 100
    """The number of auctions open at a time; their duration follows from it and the rate."""
    active_people: int = 1000

    @property
    def cycle(self) -> int:
        return self.persons + self.auctions + self.bids

    @property
    def longest_auction_ms(self) -> int:
        """The maximal duration of an auction. Durations are uniform between 0 and twice their mean."""
        return max(int(2 * 1000 * self.in_flight_auctions * self.cycle / (self.auctions * self.rate)), 1)

    def events(self, first: int, count: int) -> pa.Table:
        """The ``count`` events from number ``first`` on."""
        number = np.arange(first, first + count, dtype=np.int64)
        position = number % self.cycle
        kind = (position >= self.persons).astype(np.int8) + (position >= self.persons + self.auctions)
        draw = _Draw(self.seed, number)
        makers = (_persons, _auctions, _bids)
        made = [_spread(make(self, draw.of(kind == code)), kind == code) for code, make in enumerate(makers)]
        return pa.table([number, pa.array(KINDS).take(pa.array(kind)), _time(self.times_ms(draw)), *made], SCHEMA)

    def slices(self, events: int, size: int, first: int = 0) -> Iterator[pa.Table]:
        """``events`` events from number ``first`` on, in tables of ``size``."""
        for at in range(first, first + events, size):
            yield self.events(at, min(size, first + events - at))

    def times_ms(self, draw: "_Draw") -> np.ndarray:
        """The event time of each event."""
        late = draw.uniform("is late") < self.disorder_share
        behind_ms = draw.below("how late", self.disorder_ms + 1) * late
        return self.start_ms + (draw.number * (1000 / self.rate)).astype(np.int64) - behind_ms

    def last_person(self, number: np.ndarray) -> np.ndarray:
        """The index of the newest person at this event: the number of persons so far, minus one."""
        return number // self.cycle * self.persons + np.minimum(number % self.cycle, self.persons - 1)

    def last_auction(self, number: np.ndarray) -> np.ndarray:
        """As ``last_person``; -1 before the first."""
        in_cycle = np.minimum(number % self.cycle - self.persons, self.auctions - 1)
        return number // self.cycle * self.auctions + np.maximum(in_cycle, -1)


def closing(nexmark: Nexmark, events: int) -> list[pa.Table]:
    """Epochs that follow the first ``events`` events and advance the watermark past all of them: a person, an auction and a bid
    each, an hour later, that match no other event."""
    first_cycle = nexmark.events(0, nexmark.cycle).to_pylist()
    some = [next(event for event in first_cycle if event["kind"] == kind) for kind in KINDS]
    nobody = {"person": {"id": -1}, "auction": {"id": -2, "seller": -3}, "bid": {"auction": -4, "bidder": -5}}
    at = datetime.fromtimestamp(nexmark.start_ms // 1000 + int(events / nexmark.rate) + 3600, UTC)
    tables = []
    for epoch in range(CLOSING_EPOCHS):
        changed = {kind: {**event[kind], **nobody[kind]} for kind, event in zip(KINDS, some, strict=True)}
        changed["auction"]["expires"] = at
        numbered = enumerate(KINDS, events + epoch * len(KINDS))
        rows = [{"number": number, "kind": kind, "dateTime": at, kind: changed[kind]} for number, kind in numbered]
        tables.append(pa.Table.from_pylist(rows, SCHEMA))
    return tables


def write_files(tables: Iterable[pa.Table], folder: Path, *, first: int = 0) -> list[Path]:
    """Writes a Parquet file for each table, one per epoch. Their modification times are in the order of the epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, rows in enumerate(tables, first):
        path = folder / f"{number:06d}.parquet"
        pq.write_table(rows, path, row_group_size=max(-(-len(rows) // ROW_GROUPS), 1))
        os.utime(path, (FIRST_MTIME_S + number,) * 2)
        paths.append(path)
    return paths


class _Draw:
    """Pseudo-random draws for some events: each is a hash of the seed, the name of the draw, and the number of the event."""

    def __init__(self, seed: int, number: np.ndarray) -> None:
        self._seed = seed
        self.number = number
        self._mixed = _mix(number.astype(np.uint64) + np.uint64(_mix_one(seed)))

    def of(self, chosen: np.ndarray) -> "_Draw":
        return _Draw(self._seed, self.number[chosen])

    def __len__(self) -> int:
        return len(self.number)

    def bits(self, what: str) -> np.ndarray:
        return _mix(self._mixed ^ np.uint64(_mix_one(zlib.crc32(what.encode()))))

    def below(self, what: str, bound: "int | np.ndarray") -> np.ndarray:
        """Integers from 0, below the bound."""
        return ((self.bits(what) >> np.uint64(11)) % np.asarray(bound, np.uint64)).astype(np.int64)

    def uniform(self, what: str) -> np.ndarray:
        """Uniform between 0 and 1."""
        return (self.bits(what) >> np.uint64(11)).astype(np.float64) / (1 << 53)

    def one_of(self, what: str, values: "pa.Array | tuple[str, ...]") -> pa.Array:
        pool = values if isinstance(values, pa.Array) else pa.array(values)
        return pool.take(pa.array(self.below(what, len(pool))))


def _mix(bits: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


def _mix_one(number: int) -> int:
    return int(_mix(np.array([number & (1 << 64) - 1], np.uint64) + np.uint64(0x9E3779B97F4A7C15))[0])


def _persons(nexmark: Nexmark, draw: _Draw) -> pa.StructArray:
    names = pc.binary_join_element_wise(draw.one_of("first name", FIRST_NAMES), draw.one_of("last name", LAST_NAMES), " ")
    emails = pc.binary_join_element_wise(
        draw.one_of("email user", _strings("user", 3, 6)), "@", draw.one_of("email host", _strings("host", 3, 4)), ".com", ""
    )
    fours = [pc.utf8_lpad(pa.array(draw.below(f"card {part}", 10_000)).cast(pa.string()), 4, "0") for part in range(4)]
    cards = pc.binary_join_element_wise(*fours, " ")
    cities, states = draw.one_of("city", CITIES), draw.one_of("state", STATES)
    extra = _extra(draw, "person", nexmark.person_bytes - 64)
    ids = nexmark.last_person(draw.number) + FIRST_ID
    return pa.StructArray.from_arrays([pa.array(ids), names, emails, cards, cities, states, extra], fields=fields(PERSON))


def _auctions(nexmark: Nexmark, draw: _Draw) -> pa.StructArray:
    number = draw.number
    hot = nexmark.last_person(number) // BATCH * BATCH
    seller = np.where(draw.below("hot seller", nexmark.hot_seller_ratio) > 0, hot, _a_person(nexmark, draw, "seller"))
    initial = _price(draw, "initial bid")
    expires_ms = nexmark.times_ms(draw) + 1 + draw.below("length", nexmark.longest_auction_ms)
    columns = [
        pa.array(nexmark.last_auction(number) + FIRST_ID),
        draw.one_of("item", _strings("item", 3, 19)),
        draw.one_of("description", _strings("description", 3, 99)),
        pa.array(initial),
        pa.array(initial + _price(draw, "reserve")),
        _time(expires_ms),
        pa.array(seller + FIRST_ID),
        pa.array(FIRST_CATEGORY + draw.below("category", CATEGORIES)),
        _extra(draw, "auction", nexmark.auction_bytes - 110),
    ]
    return pa.StructArray.from_arrays(columns, fields=fields(AUCTION))


def _bids(nexmark: Nexmark, draw: _Draw) -> pa.StructArray:
    number = draw.number
    last = nexmark.last_auction(number)
    oldest = np.maximum(last - nexmark.in_flight_auctions, 0)
    any_auction = oldest + draw.below("auction", last - oldest + 1 + LEAD)
    auction = np.where(draw.below("hot auction", nexmark.hot_auction_ratio) > 0, last // BATCH * BATCH, any_auction)
    # The second of each batch, so that hot bidders and hot sellers are different persons.
    hot = nexmark.last_person(number) // BATCH * BATCH + 1
    bidder = np.where(draw.below("hot bidder", nexmark.hot_bidder_ratio) > 0, hot, _a_person(nexmark, draw, "bidder"))
    hot_channel = draw.below("hot channel", 2) > 0
    channel = np.where(hot_channel, draw.below("which hot", len(HOT_CHANNELS)), len(HOT_CHANNELS) + draw.below("which", CHANNELS))
    names, urls = _channels()
    columns = [
        pa.array(auction + FIRST_ID),
        pa.array(bidder + FIRST_ID),
        pa.array(_price(draw, "price")),
        names.take(pa.array(channel)),
        urls.take(pa.array(channel)),
        _extra(draw, "bid", nexmark.bid_bytes - 32),
    ]
    return pa.StructArray.from_arrays(columns, fields=fields(BID))


def _a_person(nexmark: Nexmark, draw: _Draw, what: str) -> np.ndarray:
    """One of the active persons, or one of the next ``LEAD``."""
    count = nexmark.last_person(draw.number) + 1
    active = np.minimum(count, nexmark.active_people)
    return count - active + draw.below(what, active + LEAD)


def _price(draw: _Draw, what: str) -> np.ndarray:
    """From 1 to a million dollars, in cents, log-uniform."""
    return np.rint(10 ** (draw.uniform(what) * 6) * 100).astype(np.int64)


def _extra(draw: _Draw, what: str, mean: int) -> pa.Array:
    """Padding of ``mean`` bytes, give or take a fifth."""
    mean = max(mean, 1)
    return draw.one_of(f"extra {what}", _strings(f"extra {what}", mean - mean // 5, mean + mean // 5))


@lru_cache(maxsize=32)
def _strings(what: str, shortest: int, longest: int) -> pa.Array:
    """``POOL`` strings of lower-case letters."""
    seed = zlib.crc32(what.encode())
    draw = _Draw(seed, np.arange(POOL))
    ends = np.concatenate([[0], np.cumsum(shortest + draw.below("length", longest - shortest + 1))])
    letters = (97 + _Draw(seed, np.arange(ends[-1])).below("letter", 26)).astype(np.uint8)
    return pa.StringArray.from_buffers(POOL, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(letters))


@lru_cache(maxsize=1)
def _channels() -> tuple[pa.Array, pa.Array]:
    """Names and URLs of the channels, the hot ones first. Nine of ten other URLs have the channel id."""
    count = len(HOT_CHANNELS) + CHANNELS
    draw = _Draw(0, np.arange(count))
    folders = [draw.one_of(f"folder {part}", _strings(f"folder {part}", 3, 5)) for part in range(3)]
    plain = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/")
    ids = pa.array(draw.below("channel id", 1 << 31)).cast(pa.string())
    named = pc.binary_join_element_wise(plain, ids, "&channel_id=")
    has_id = (np.arange(count) >= len(HOT_CHANNELS)) & (draw.below("has id", 10) > 0)
    names = pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))])
    return names, pc.if_else(pa.array(has_id), named, plain)


def _time(at_ms: np.ndarray) -> pa.Array:
    return pa.array(at_ms * 1000).cast(TIME)


def _spread(rows: pa.StructArray, where: np.ndarray) -> pa.Array:
    """An array as long as ``where``: these rows, in order, where it is true; null elsewhere."""
    at = np.cumsum(where) - 1
    return rows.take(pa.array(at, mask=~where))
