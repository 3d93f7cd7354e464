"""Each Nexmark query with state on the test kit against DuckDB over the same events: out of order, with restarts and other slots.

Those without are nothing but expressions of Spark: they run there, in ``tests/spark/test_nexmark.py``.
"""

from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from examples.nexmark.generator import Nexmark, closing
from examples.nexmark.oracle import Oracle
from examples.nexmark.queries import LONGEST, QUERIES
from floodplain.bench.nexmark import STATEFUL, STATELESS
from floodplain.state.durations import to_ms
from tests.examples.nexmark_kit import kit, played

STREAM = Nexmark(seed=11, rate=200.0, disorder_ms=3000, disorder_share=0.3)
EVENTS = 4000


def epochs(cuts: int, seed: int = 1) -> list[pa.Table]:
    """The events, cut at any places."""
    places = sorted(np.random.default_rng(seed).choice(np.arange(1, EVENTS), cuts - 1, replace=False).tolist())
    return [STREAM.events(first, last - first) for first, last in pairwise([0, *places, EVENTS])]


def test_the_benchmark_has_all_queries():
    assert sorted([*STATEFUL, *STATELESS]) == sorted(QUERIES) == sorted(f"q{number}" for number in range(23))


def test_auctions_last_no_longer_than_the_queries_think():
    assert STREAM.longest_auction_ms <= to_ms(LONGEST, "longest")


@pytest.mark.parametrize("name", STATEFUL)
def test_the_answer_is_that_of_duckdb(name):
    query, parts = QUERIES[name], epochs(5)
    oracle = Oracle(pa.concat_tables(parts))
    fed = [*parts, *closing(STREAM, EVENTS)] if query.closes else parts
    run = kit(query)
    found = played(query, fed, run, slots=(2, 3, 1))
    assert oracle.differences(name, found, query.changes) == []
    assert sum(map(len, found)) >= len(oracle.answer(name)) > 0
    assert run.store.head.schemas, "it has state"


def test_windows_of_processing_time_are_those_of_the_clock():
    query, parts = QUERIES["q12"], epochs(6)
    found = played(query, parts, kit(query, slots=2), epoch_ms=4000)
    newest = {(row["bidder"], row["window_start"]): row["bid_count"] for rows in found for row in rows.to_pylist()}
    wanted: dict[tuple, int] = {}
    for number, events in enumerate(parts):
        start = datetime.fromtimestamp(number * 4 // 10 * 10, UTC)
        for row in Oracle(events).answer("q12").to_pylist():
            key = (row["bidder"], start)
            wanted[key] = wanted.get(key, 0) + row["bid_count"]
    assert newest == wanted
