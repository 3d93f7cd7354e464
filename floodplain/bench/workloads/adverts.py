"""The workload ``join``: each click with the impressions of its ad in the twenty seconds before it, and the expected output.

Events are those of ``examples/ad_join.py``: seven impressions to three clicks, few ads with many events, out of order by up to
four seconds of event time, never later than that.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from floodplain.spark.runtime import stream

ROWS = "kind string, ad long, at_ms long, at timestamp"
IMPRESSION = "impression"
CLICK = "click"
IMPRESSIONS_SHARE = 0.7
WITHIN_MS = 20_000
DISORDER_MS = 4_000
START_MS = 1_800_000_000_000
TIME = pa.timestamp("us", "UTC")


def events(first: int, rows: int, ads: int, rows_per_s: int, rng: np.random.Generator) -> pa.Table:
    """``rows`` events from number ``first`` on, in the order of arrival, ``rows_per_s`` in a second of event time."""
    arrival_ms = START_MS + (first + np.arange(rows)) * 1000 // rows_per_s
    at_ms = arrival_ms - rng.integers(0, DISORDER_MS, rows)
    return pa.table(
        {
            "kind": np.where(rng.random(rows) < IMPRESSIONS_SHARE, IMPRESSION, CLICK),
            "ad": (ads * rng.random(rows) ** 2).astype(np.int64),
            "at_ms": at_ms,
            "at": pa.array(at_ms).cast(pa.timestamp("ms")).cast(TIME),
        }
    )


def start(slots: int) -> Callable[[Any, Path], Any]:
    """Floodplain's contender, as a user writes it."""

    def started(rows: Any, folder: Path) -> Any:
        both: Any = stream(rows).watermark("at", f"{DISORDER_MS} milliseconds")
        shown = both.transform(_only(IMPRESSION)).select("ad", "at", impression="at_ms")
        clicked = both.transform(_only(CLICK)).select("ad", "at", click="at_ms")
        joined = shown.join(clicked, on="ad", within=("0 seconds", f"{WITHIN_MS} milliseconds"), suffixes=("", "_click"))
        return joined.write("parquet", path=str(folder / "out")).start(state=str(folder / "state"), slots=slots)

    return started


def _only(kind: str) -> Callable[[Any], Any]:
    return lambda rows: rows.where(f"kind = '{kind}'")


def wanted(fed: Sequence[Path], connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    """The expected output: DuckDB's join of the files."""
    files = [str(path) for path in fed]
    return connection.sql(
        "select i.ad, i.at_ms as impression, c.at_ms as click "
        "from read_parquet($files) i join read_parquet($files) c on i.ad = c.ad "
        f"where i.kind = '{IMPRESSION}' and c.kind = '{CLICK}' and c.at_ms between i.at_ms and i.at_ms + {WITHIN_MS}",
        params={"files": files},
    )
