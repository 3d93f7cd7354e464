"""The generator of Nexmark events, and what the comparison with DuckDB finds."""

import subprocess
import sys
from dataclasses import replace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.nexmark.generator import SCHEMA, Nexmark, closing, write_files
from examples.nexmark.oracle import SQL, Changes, Oracle

STREAM = Nexmark(seed=3, rate=200.0, disorder_ms=3000)


def one(sql: str, events: pa.Table) -> tuple:
    with duckdb.connect() as connection:
        connection.register("events", events)
        return connection.sql(sql).fetchall()[0]


@pytest.mark.parametrize("size", [1, 7, 50, 333, 1000])
def test_parts_put_together_are_the_whole(size):
    whole = STREAM.events(120, 400)
    parts = pa.concat_tables(STREAM.slices(400, size, first=120))
    assert whole.schema == SCHEMA
    assert parts.combine_chunks().equals(whole.combine_chunks())


def test_the_seed_decides_and_nothing_else():
    assert STREAM.events(0, 500).equals(Nexmark(seed=3, rate=200.0, disorder_ms=3000).events(0, 500))
    other = replace(STREAM, seed=4).events(0, 500)
    same = [pair[0] == pair[1] for pair in zip(STREAM.events(0, 500).to_pylist(), other.to_pylist(), strict=True)]
    assert not any(same)


def test_kinds_and_ids_come_as_nexmark_has_them():
    events = STREAM.events(0, 5000)
    assert one("select count(person), count(auction), count(bid) from events", events) == (100, 300, 4600)
    assert one("select min(auction.id), max(auction.id), count(distinct auction.id) from events", events) == (1000, 1299, 300)
    assert one("select min(person.id), max(person.id), count(distinct person.id) from events", events) == (1000, 1099, 100)
    unknown = "select count(*) from events where bid.auction > 1300 + 10 or auction.seller > 1100 + 10"
    assert one(unknown, events) == (0,)


@pytest.mark.parametrize(("ratio", "share"), [(1, 0.0), (2, 0.5), (4, 0.75)])
def test_hot_ratios_are_the_skew(ratio, share):
    events = replace(STREAM, hot_auction_ratio=ratio, hot_bidder_ratio=ratio, hot_seller_ratio=ratio).events(0, 40_000)
    found = one(
        "select avg((bid.auction % 100 = 0)::int), avg((bid.bidder % 100 = 1)::int), avg((auction.seller % 100 = 0)::int) "
        "from events",
        events,
    )
    assert found == pytest.approx((share, share, share), abs=0.03)


def test_sizes_are_those_asked_for():
    events = replace(STREAM, bid_bytes=300).events(0, 20_000)
    columns = "len(person.name) + len(person.emailAddress) + len(person.creditCard) + len(person.city) + len(person.state) + 8"
    found = one(
        f"select avg({columns} + len(person.extra)), avg(48 + len(auction.itemName) + len(auction.description) + "
        "len(auction.extra)), avg(32 + len(bid.extra)) from events",
        events,
    )
    assert found == pytest.approx((200, 500, 300), rel=0.03)


def test_times_follow_the_rate_and_lie_behind_by_at_most_the_disorder():
    behind = "max(number * 5 - (epoch_ms(dateTime) - 1767225600000)), min(number * 5 - (epoch_ms(dateTime) - 1767225600000))"
    most, least = one(f"select {behind} from events", STREAM.events(0, 20_000))
    assert 2900 < most <= 3000 and least == 0
    late = one("select avg((epoch_ms(dateTime) - 1767225600000 < number * 5)::int) from events", STREAM.events(0, 20_000))
    assert late[0] == pytest.approx(0.1, abs=0.02)
    assert one(f"select {behind} from events", replace(STREAM, disorder_ms=0).events(0, 500)) == (0, 0)


def test_no_auction_lasts_longer_than_said():
    stream = replace(STREAM, in_flight_auctions=20)
    lasts = "epoch_ms(auction.expires) - epoch_ms(dateTime)"
    longest, shortest = one(f"select max({lasts}), min({lasts}) from events", stream.events(0, 20_000))
    assert shortest > 0 and 0.9 * stream.longest_auction_ms < longest <= stream.longest_auction_ms


def test_the_command_writes_what_the_generator_makes(tmp_path):
    command = [sys.executable, "-m", "examples.nexmark.generate", "--events", "250", "--per-file", "100", "--out", str(tmp_path)]
    subprocess.run([*command, "--seed", "3", "--rate", "200", "--disorder-ms", "3000"], check=True)
    files = sorted(tmp_path.glob("*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [100, 100, 50]
    assert pa.concat_tables(map(pq.read_table, files)).combine_chunks().equals(STREAM.events(0, 250).combine_chunks())


def test_closing_events_have_to_do_with_nobody(tmp_path):
    events = [*STREAM.slices(3000, 1000), *closing(STREAM, 3000)]
    without, with_closing = Oracle(pa.concat_tables(events[:3])), Oracle([str(path) for path in write_files(events, tmp_path)])
    for query in ("q3", "q4", "q6", "q8", "q9", "q20"):
        assert len(without.answer(query)) and not with_closing.differences(query, [without.answer(query)], Changes())


@pytest.mark.parametrize("query", SQL)
def test_every_query_has_an_answer_and_another_one_is_noticed(query):
    oracle = Oracle(STREAM.events(0, 6000))
    right = oracle.answer(query)
    assert len(right) > 1
    half = len(right) // 2
    assert not oracle.differences(query, [right.slice(half), right.slice(0, half)], Changes())
    assert len(oracle.differences(query, [right.slice(1)], Changes())) == 1
    assert len(oracle.differences(query, [right, right.slice(0, 1)], Changes())) >= 1
    assert len(oracle.differences(query, [], Changes())) == len(right)


def test_updates_and_weights_are_folded():
    oracle = Oracle(STREAM.events(0, 2000))
    right = oracle.answer("q17")
    wrong = right.set_column(2, "total_bids", pa.array([0] * len(right)))
    newest = Changes("update", ("auction", "day"))
    assert not oracle.differences("q17", [wrong, right], newest)
    assert oracle.differences("q17", [right, wrong.slice(0, 1)], newest)

    def weighed(rows: pa.Table, weight: int) -> pa.Table:
        return rows.append_column("weight", pa.array([weight] * len(rows)))

    epochs = [weighed(wrong, 1), pa.concat_tables([weighed(wrong, -1), weighed(right, 1)])]
    assert not oracle.differences("q17", epochs, Changes("retract"))
    assert oracle.differences("q17", [epochs[1]], Changes("retract")), "what was never given cannot be taken back"
