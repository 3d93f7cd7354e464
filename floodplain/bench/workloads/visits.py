"""The workload ``process``: a value, a list and timers per key, as a process function, and the check of its output.

A key's value is the sum of its amounts, emitted in every epoch that has rows of it. Its list has the times of its rows. When a
window of event time ends, a timer emits the number of times before that end and removes them. The output depends only on the
rows and their epochs, not on when the watermark advances.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from floodplain.bench.workloads.state_updates import users
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.state.descriptors import List, Value

ROWS = "key string, ts timestamp, at long, amount long"
OUTPUT = "key string, at long, n long"
EPOCH_MS = 10_000
EPOCHS_PER_WINDOW = 3
WINDOW_MS = EPOCH_MS * EPOCHS_PER_WINDOW
CLOSING_MS = 3_600_000


def window_end(at: int) -> int:
    return at // WINDOW_MS * WINDOW_MS + WINDOW_MS


class Visits(KeyedProcess):
    total: Any = Value("long", default=0)
    times: Any = List("long")
    output = OUTPUT

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Any:
        total, times = self.total, self.times
        total.set(total.get() + sum(row.amount for row in rows))
        times.extend([row.at for row in rows])
        for end in {window_end(row.at) for row in rows}:
            ctx.timer(end)
        yield key.key, 0, total.get()

    def on_timer(self, key: Any, at: int, ctx: Any) -> Any:  # noqa: ARG002
        times = self.times.get()
        kept = [time for time in times if time >= at]
        if kept:
            self.times.set(kept)
        else:
            self.times.clear()
        yield key.key, at, len(times) - len(kept)


def events(epoch: int, rows: int, keys: int, rng: np.random.Generator) -> pa.Table:
    """Rows of one epoch, spread over the keys and the event time of that epoch. None is at 0: Spark would drop it as late."""
    at = rng.integers(epoch * EPOCH_MS + 1, (epoch + 1) * EPOCH_MS + 1, rows)
    return _rows(users(rng.integers(0, keys, rows)), at, rng.integers(0, 1000, rows))


def closing(epoch: int) -> list[pa.Table]:
    """Two epochs long after the others: the first advances the watermark, and in the second all earlier timers fire."""
    last = epoch * EPOCH_MS + CLOSING_MS
    return [_rows(pa.array(["end"]), np.array([last + more]), np.array([0])) for more in (0, 1)]


def _rows(key: pa.Array, at: np.ndarray, amount: np.ndarray) -> pa.Table:
    return pa.table(
        {"key": key, "ts": pa.array(at).cast(pa.timestamp("ms")).cast(pa.timestamp("us", "UTC")), "at": at, "amount": amount}
    )


def processed_right(fed: Sequence[Path], output: Path) -> bool:
    """Whether the rows in ``output`` equal those that DuckDB computes from the files, each of which was one epoch.

    Requires: the files end with those of ``closing``.
    """
    with duckdb.connect() as connection:
        connection.read_parquet([str(path) for path in fed], filename=True).create_view("fed")
        connection.read_parquet(str(output / "*.parquet")).create_view("found")
        connection.execute(
            'create table wanted as select key, 0 as "at", '
            "sum(sum(amount)) over (partition by key order by filename)::bigint as n from fed group by key, filename union all "
            f'select key, "at" // {WINDOW_MS} * {WINDOW_MS} + {WINDOW_MS} as until, count(*) from fed '
            'group by key, until having until <= (select max("at") from fed)'
        )
        rows = 'select key, "at"::bigint as "at", n::bigint as n from'
        for one, other in (("wanted", "found"), ("found", "wanted")):
            if connection.sql(f"({rows} {one}) except all ({rows} {other}) limit 1").fetchall():
                return False
    return True
