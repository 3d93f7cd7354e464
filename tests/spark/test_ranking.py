"""Deduplication, top rows, first and last rows, pivots on Spark, against SQL over the same rows."""

from random import Random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from floodplain.errors import BadInput
from floodplain.operators.aggregates import functions as fp
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.spark.runtime import stream
from tests.spark.test_dataflow import finish

pytestmark = pytest.mark.spark
SCHEMA = "auction long, bidder long, price long, channel string, ts timestamp"

SQL = {
    "seen": "select auction, bidder, min(ts) from bid group by all",
    "top": """
        select auction, bidder, price, channel, ts, price % 20 as rest,
            rank() over (partition by auction order by price % 20 desc)
        from bid where price > 20 qualify rank() over (partition by auction order by price % 20 desc) <= 2
    """,
    "last": """
        select auction, bidder, price, channel, ts from bid
        qualify row_number() over (partition by auction, bidder order by ts desc, price desc) = 1
    """,
    "first": """
        select auction, bidder, price, channel, ts, ts::date from bid
        qualify row_number() over (partition by auction, ts::date order by ts, bidder, price, channel) = 1
    """,
    "by_channel": """
        select channel, count(*), sum(price)::bigint, count(*) filter (price > 500) from (
            select * from bid qualify row_number() over (partition by auction, bidder order by ts desc, price desc) = 1
        ) group by channel
    """,
    "best": """
        select *, row_number() over (partition by channel order by price desc, auction, bidder) from (
            select * from bid qualify row_number() over (partition by auction, bidder order by ts desc, price desc) = 1
        ) qualify row_number() over (partition by channel order by price desc, auction, bidder) <= 3
    """,
    "pivot": "select auction, max(price) filter (channel = 'web'), max(price) filter (channel = 'app') from bid group by auction",
}


def bids(number: int) -> pa.Table:
    rng = Random(number)
    rows = [
        {
            "auction": rng.randrange(8),
            "bidder": rng.randrange(4),
            "price": rng.randrange(1000),
            "channel": rng.choice(["web", "app"]),
            "ts": (1_700_000_000 + number * 36_000 + rng.randrange(50_000)) * 1_000_000,
        }
        for _ in range(150)
    ]
    table = pa.Table.from_pylist(rows)
    return table.set_column(4, "ts", table["ts"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")))


def build(frame, partial):
    rows = stream(frame).watermark("ts", "1 day")
    last = rows.key_by("auction", "bidder")
    newest = last.last(mode="retract", name="newest", partial=partial).key_by("channel")
    return (
        rows.dedup("auction", "bidder")
        .write("memory", name="seen")
        .also(
            rows.where("price > 20")
            .with_column("rest", F.col("price") % 20)
            .key_by("auction")
            .top(2, "rest desc", ties=True, mode="retract", partial=partial)
            .write("memory", name="top")
        )
        .also(last.last(partial=partial).write("memory", name="last"))
        .also(
            newest.agg(bids=fp.count(), price=fp.sum("price"), dear=fp.count(where="price > 500"), partial=partial).write(
                "memory", name="by_channel"
            )
        )
        .also(newest.top(3, "price desc", mode="retract", name="best").write("memory", name="best"))
        .also(rows.key_by("auction", day="date(ts)").first(mode="retract", partial=partial).write("memory", name="first"))
        .also(rows.key_by("auction").pivot("channel", ["web", "app"], "price", repeats="max").write("memory", name="pivot"))
    )


def test_all_of_them_come_to_what_sql_says(spark, tmp_path):
    """Rows are pre-aggregated before the shuffle in the second run, not in the first."""
    (tmp_path / "in").mkdir()
    pq.write_table(bids(0), tmp_path / "in" / "0.parquet")
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    found: dict[str, list[pa.Table]] = {}
    for number in (1, 2):
        output = build(frame, partial=number == 2)
        schemas = output.schemas
        query = finish(output, tmp_path, slots=number + 1)
        for name, sink in query.sinks.items():
            assert sink.table().schema == schemas[name]
            found.setdefault(name, []).append(sink.table())
        fresh = bids(number - 1)
        assert sum(progress.rows for progress in query.progress) == 5 * len(fresh) + sum(
            n > 20 for n in fresh["price"].to_pylist()
        )
        pq.write_table(bids(number), tmp_path / "in" / f"{number}.parquet")
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("bid", pa.concat_tables([bids(0), bids(1)]))
        expected = {name: rows_of(connection.sql(sql).to_arrow_table()) for name, sql in SQL.items()}
    keys = {"last": ["auction", "bidder"], "by_channel": ["channel"], "pivot": ["auction"], "seen": ["auction", "bidder"]}
    now = {name: fold_changes(tables, keys.get(name, ())) for name, tables in found.items()}
    for name in ("top", "last", "by_channel", "best", "first", "pivot"):
        assert rows_of(now[name]) == expected[name], name
    assert len(pa.concat_tables(found["seen"])) == len(now["seen"]) == len(expected["seen"])


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


def test_a_condition_on_the_weight_of_changes_is_refused(spark):
    newest = stream(spark.createDataFrame([], SCHEMA)).key_by("auction").last("ts", mode="retract")
    with pytest.raises(BadInput, match="where goes by weight"):
        newest.where(F.col("weight") > 0)
    assert newest.where(F.col("channel") == F.lit("web")).select("auction", weight=F.col("weight")).schema().names == [
        "auction",
        "weight",
    ]
