"""Joins on Spark, checked by DuckDB over the same files."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from floodplain.spark.runtime import stream
from tests.spark.test_dataflow import finish, put_file, rows_of, source

pytestmark = pytest.mark.spark
START_MS = 1_800_000_000_000
SIDES = {"shown": "ad int, at timestamp, width int", "clicks": "id bigint, at timestamp, user string"}


def times(rng: np.random.Generator, number: int, rows: int) -> pa.Array:
    """Each file five seconds after the one before, out of order by two; to the microsecond."""
    at_us = (START_MS + number * 5000) * 1000 + rng.integers(-2_000_000, 5_000_000, rows)
    return pa.array(at_us).cast(pa.timestamp("us", "UTC"))


def events(folder: Path, files: int, rows: int) -> None:
    for number in range(files):
        rng = np.random.default_rng(number)
        ads = rng.integers(0, 60, rows).astype(np.int32)
        put_file(folder / "shown", number, ad=ads, at=times(rng, number, rows), width=rng.integers(0, 9, rows).astype(np.int32))
        users = [f"user{user}" for user in rng.integers(0, 9, rows)]
        put_file(folder / "clicks", number, id=rng.integers(0, 60, rows), at=times(rng, number, rows), user=users)


def duck(query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        return Counter(connection.execute(query).fetchall())


@pytest.mark.both_engines
def test_two_sources_are_joined_within_an_interval(spark, tmp_path):
    events(tmp_path, 3, 200)
    both = stream(**{side: source(spark, tmp_path / side, schema) for side, schema in SIDES.items()}).watermark("at", "2 seconds")
    joined = both.source("shown").join(
        both.source("clicks"), {"ad": "id"}, "full", within=("-1 second", "3 seconds"), suffixes=("", "_click")
    )
    query = finish(
        joined.select("ad", "width", "user", at="unix_micros(at)", click="unix_micros(at_click)").write("memory"), tmp_path
    )
    assert sum(epoch.late for epoch in query.progress) == 0
    waiting = query.manifest.watermarks["event_time"]
    found = Counter(rows_of(query.sink))
    wanted = duck(f"""
        select coalesce(ad, id), width, "user", epoch_us(s.at), epoch_us(c.at)
        from '{tmp_path}/shown/*.parquet' s full join '{tmp_path}/clicks/*.parquet' c
        on ad = id and c.at between s.at - interval 1 second and s.at + interval 3 seconds
        where c.at is not null and s.at is not null
            or epoch_us(s.at + interval 3 seconds) // 1000 <= {waiting} or epoch_us(c.at + interval 1 second) // 1000 <= {waiting}
    """)
    assert found == wanted
    assert len({(row[3] is None, row[4] is None) for row in found}) == 3, "pairs, and rows without a partner of both sides"


def test_a_stream_is_joined_with_itself(spark, tmp_path):
    events(tmp_path, 2, 150)
    shown = stream(source(spark, tmp_path / "shown", SIDES["shown"])).watermark("at", "2 seconds")
    small, large = (shown.transform(lambda df, words=words: df.where(f"width {words}")) for words in ("< 4", ">= 4"))
    joined = small.join(large, "ad", within=("0 seconds", "2 seconds"), suffixes=("", "_next"))
    found = Counter(rows_of(finish(joined.write("memory"), tmp_path).sink))
    wanted = duck(f"""
        select a.ad, a.at, a.width, b.at, b.width from '{tmp_path}/shown/*.parquet' a join '{tmp_path}/shown/*.parquet' b
        on a.ad = b.ad and a.width < 4 and b.width >= 4 and b.at between a.at and a.at + interval 2 seconds
    """)
    assert {(*row[:1], row[1].timestamp(), row[2], row[3].timestamp(), row[4]) for row in found} == {
        (*row[:1], row[1].timestamp(), row[2], row[3].timestamp(), row[4]) for row in wanted
    }
    assert found.total() == wanted.total()
