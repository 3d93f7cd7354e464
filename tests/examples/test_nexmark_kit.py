"""Each Nexmark query on the test kit against DuckDB over the same events: out of order, in several epochs, with restarts."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from examples.nexmark.generator import Nexmark, closing
from examples.nexmark.oracle import Oracle
from examples.nexmark.queries import LONGEST, QUERIES
from floodplain.state.durations import to_ms
from tests.examples.nexmark_kit import kit, played

STREAM = Nexmark(seed=11, rate=200.0, disorder_ms=3000, disorder_share=0.3)
EVENTS = 4000


def epochs(cuts: int, seed: int = 1) -> list[pa.Table]:
    """The events, cut at any places."""
    places = sorted(np.random.default_rng(seed).choice(np.arange(1, EVENTS), cuts - 1, replace=False).tolist())
    return [STREAM.events(first, last - first) for first, last in pairwise([0, *places, EVENTS])]


def test_auctions_last_no_longer_than_the_queries_think():
    assert STREAM.longest_auction_ms <= to_ms(LONGEST, "longest")


@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_that_of_duckdb(name):
    query, parts = QUERIES[name], epochs(5)
    oracle = Oracle(pa.concat_tables(parts))
    fed = [*parts, *closing(STREAM, EVENTS)] if query.timed else parts
    found = played(query, fed, kit(query, slots=3))
    assert oracle.differences(name, found, query.changes) == []
    assert sum(map(len, found)) >= len(oracle.answer(name)) > 0
