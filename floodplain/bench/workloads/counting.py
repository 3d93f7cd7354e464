"""The workload ``counter``: count and sum per key, as a process function, and the check of its output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.bench.workloads.state_updates import users
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.state.descriptors import Value

ROWS = "key string, amount long"
OUTPUT = "key string, n long, total long"
OUTPUT_SCHEMA = pa.schema({"key": pa.string(), "n": pa.int64(), "total": pa.int64()})


class Count(KeyedBatchProcess):
    """The number of rows and the sum of their amounts so far, by key."""

    n = Value("long", default=0)
    total = Value("long", default=0)
    output = OUTPUT

    def process(self, batch: Any, ctx: Any) -> pa.Table:  # noqa: ARG002
        amounts = batch.column("amount").to_numpy()
        sums = np.add.reduceat(amounts, batch.starts[:-1]) if len(amounts) else amounts
        n = pc.add(batch.state("n"), pa.array(batch.rows_per_key()))
        total = pc.add(batch.state("total"), pa.array(sums))
        batch.set("n", n)
        batch.set("total", total)
        return pa.table({"key": batch.keys.column("key"), "n": n, "total": total})


def events(ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """One row for each of these user ids."""
    return pa.table({"key": users(ids), "amount": rng.integers(0, 1000, len(ids))})


def counted_right(fed: Sequence[Path], output: Path, *, stateful: bool) -> bool:
    """Whether the Parquet files in ``output`` equal the result of DuckDB on the input files, each of which was one epoch.

    Input is Parquet or JSON, all alike.

    Every epoch must emit one row for each of its keys. The result of a stateful contender is the newest row of each key, the one
    with the largest count; that of one without state is the sum of the rows of each key.
    """
    newest = "max(n) as n, arg_max(total, n) as total" if stateful else "sum(n) as n, sum(total) as total"
    with duckdb.connect() as connection:
        _read(connection, fed).create_view("fed")
        connection.read_parquet(str(output / "*.parquet")).create_view("out")
        connection.execute(
            "create table wanted as select key, count(*)::hugeint as n, sum(amount) as total from fed group by key"
        )
        connection.execute(f"create table found as select key, {newest} from out group by key")
        rows = connection.sql("select sum(keys) from (select count(distinct key) as keys from fed group by filename)").fetchall()
        if connection.sql("select count(*) from out").fetchall() != rows:
            return False
        return not connection.sql(
            "select 1 from wanted full join found using (key) "
            "where wanted.n is distinct from found.n or wanted.total is distinct from found.total limit 1"
        ).fetchall()


def _read(connection: Any, files: Sequence[Path]) -> duckdb.DuckDBPyRelation:
    names = [str(path) for path in files]
    made: duckdb.DuckDBPyRelation
    if files[0].suffix == ".json":
        made = connection.read_json(names, filename=True, columns={"key": "varchar", "amount": "bigint"})
    else:
        made = connection.read_parquet(names, filename=True)
    return made
