"""A pipeline with a bit of everything, over generated files: the engines must agree on it in every epoch."""

from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import floodplain as fp
from tests.processes import ByCount, Priced
from tests.spark.files import put_table

FILES_PER_EPOCH = 3
SCHEMA = "user string, page string, amount long, number long, at timestamp"
START_MS = 1_700_000_000_000


class Journey(fp.KeyedProcess):
    """Rows of a user in the order of their source partition, else it fails; a timer, a side output, dead letters."""

    n = fp.Value("long", default=0)
    last = fp.Value("long", default=-1)
    total = fp.Value("long", default=0)
    output = "user string, n long, total long"
    side_outputs: ClassVar = {"visits": "user string, page string, amount long"}

    def process(self, key, rows, ctx):
        for row in rows:
            if row.amount < 0:
                raise ValueError("negative amount")
            if row.number <= self.last.get():
                raise AssertionError(f"row {row.number} came after {self.last.get()}")
            self.last.set(row.number)
            self.n.set(self.n.get() + 1)
            self.total.set(self.total.get() + row.amount)
            ctx.emit("visits", (key.user, row.page, row.amount))
        ctx.timer((ctx.watermark or 0) + 5000)
        yield key.user, self.n.get(), self.total.get()

    def on_timer(self, key, at, ctx):
        yield key.user, -self.n.get(), at % 1000


def write_input(folder: Path, epochs: int, rows: int, first: int = 0) -> None:
    """Each user is in one file of an epoch, so that only the order within a partition matters. Some rows come too late."""
    for epoch in range(first, first + epochs):
        put_table(folder / "prices", epoch, pa.table({"item": ["tea"], "price": [epoch + 1]}))
        for file in range(FILES_PER_EPOCH):
            rng = np.random.default_rng([epoch, file])
            ms = START_MS + epoch * 8000 + rng.integers(-4000, 8000, rows)
            table = pa.table(
                {
                    "user": [f"u{n * FILES_PER_EPOCH + file}" for n in rng.integers(0, 20, rows)],
                    "page": [f"/{n}" for n in rng.integers(0, 7, rows)],
                    "amount": rng.integers(-1, 60, rows),
                    "number": np.arange(rows) + epoch * rows,
                    "at": pa.array(ms, pa.timestamp("ms", "UTC")),
                }
            )
            put_table(folder / "in", epoch * FILES_PER_EPOCH + file, table)


def output(spark: Any, folder: Path) -> Any:
    """Operators in a row, with and without a step of Spark's between them, side outputs, a broadcast, windows."""
    source = spark.readStream.option("maxFilesPerTrigger", FILES_PER_EPOCH).schema(SCHEMA).parquet(str(folder / "in"))
    prices = spark.readStream.option("maxFilesPerTrigger", 1).schema("item string, price long").parquet(str(folder / "prices"))
    rows = fp.stream(source).watermark("at", "2 seconds")
    journey = rows.key_by("user").process(Journey(), on_error="dead_letter")
    by_count = journey.where("total > n").key_by("n").process(ByCount())
    spent = journey.side("visits").key_by("user").process(Priced(), broadcast=prices)
    often = by_count.transform(lambda df: df.where("n > 3")).key_by(few="n % 3").agg(n=fp.count(), most=fp.max("n"), name="often")
    windows = rows.key_by("page").window(fp.tumbling("4 seconds")).agg(n=fp.count(), amount=fp.sum("amount"), name="windows")
    sinks = {"by_count": by_count, "spent": spent, "often": often, "windows": windows}
    first, *others = (made.write("memory", name=name) for name, made in sinks.items())
    return reduce(lambda some, more: some.also(more), others, first)
