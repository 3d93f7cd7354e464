"""Count and sum per key, using only the public API, so that it runs on any commit."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import floodplain as fp

ROWS = "key string, amount long"


class Count(fp.KeyedBatchProcess):
    n = fp.Value("long", default=0)
    total = fp.Value("long", default=0)
    output = "key string, n long, total long"

    def process(self, batch: Any, ctx: Any) -> pa.Table:
        amounts = batch.column("amount").to_numpy()
        sums = np.add.reduceat(amounts, batch.starts[:-1]) if len(amounts) else amounts
        n = pc.add(batch.state("n"), pa.array(batch.rows_per_key()))
        total = pc.add(batch.state("total"), pa.array(sums))
        batch.set("n", n)
        batch.set("total", total)
        return pa.table({"key": batch.keys.column("key"), "n": n, "total": total})


def start(rows: Any, home: str) -> Any:
    counted = fp.stream(rows).key_by("key").process(Count())
    return counted.write("parquet", path=f"{home}/out").start(state=f"{home}/state", slots=2)
