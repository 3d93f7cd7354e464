"""A sample of keys, with their state, taken from a running operator by a control operation.

    python examples/key_sample.py [--keys 5] [--slots 4] [--engine tasks|workers]

It counts words on Spark, takes a sample while the query runs, and takes it again with other slots. Exit code 1 if they are not
what a batch computation gives.
"""

import argparse
import heapq
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyspark.sql import SparkSession

import floodplain as fp
from floodplain.spark.java import provide_java

WORDS = [f"word{number % 97 * (number % 13)}" for number in range(5000)]


class KeySample(fp.ControlOperation):
    """The keys with the smallest hashes: a sample that does not depend on slots, and to which samples of slots merge."""

    def __init__(self, operator: str, key: str, value: str, size: int) -> None:
        self.operator, self.key, self.value, self.size = operator, key, value, size

    def on_slot(self, state: fp.SlotState, ctx: fp.SlotContext) -> list[list[Any]]:
        rows = (row for piece in state.scan(columns=[self.key, self.value]) for row in piece.to_pylist())
        return heapq.nsmallest(self.size, ([hashed(row[self.key]), row[self.key], row] for row in rows))

    def merge(self, a: list[list[Any]], b: list[list[Any]]) -> list[list[Any]]:
        return heapq.nsmallest(self.size, [*a, *b])

    def decide(self, result: list[list[Any]], control: fp.ControlContext) -> list[dict[str, Any]]:
        return [row for _, _, row in result]


class Count(fp.KeyedProcess):
    n = fp.Value("long", default=0)
    output = "word string, n long"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.n.set(self.n.get() + len(list(rows)))
        yield key.word, self.n.get()


def hashed(key: str) -> int:
    return xxhash.xxh32_intdigest(key.encode())


def expected(size: int) -> list[dict[str, Any]]:
    counts = Counter(WORDS)
    return [{"word": word, "n": counts[word]} for word in heapq.nsmallest(size, counts, key=lambda word: (hashed(word), word))]


def samples(spark: Any, folder: Path, size: int, slots: int, engine: str) -> list[list[dict[str, Any]]]:
    """Taken with these slots, and with one slot more."""
    (folder / "in").mkdir()
    pq.write_table(pa.table({"word": WORDS}), folder / "in" / "words.parquet")
    words = fp.stream(spark.readStream.schema("word string").parquet(str(folder / "in")))
    pipeline = words.key_by("word").process(Count(), name="count").write("memory")
    query = pipeline.start(state=folder / "state", slots=slots, engine=engine)
    try:
        query.process_all_available()
        first = query.control(KeySample("count", "word", "n", size))
        query.rescale(slots + 1)
        return [first, query.control(KeySample("count", "word", "n", size))]
    finally:
        query.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="a sample of keys of a running operator")
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--engine", choices=("tasks", "workers"), default="tasks")
    options = parser.parse_args(arguments)
    provide_java(Path(tempfile.mkdtemp(prefix="floodplain-java-")))
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        taken = samples(spark, Path(folder), options.keys, options.slots, options.engine)
    for row in taken[0]:
        print(f"{row['word']:>12} {row['n']:>6}")
    right = all(sample == expected(options.keys) for sample in taken)
    print("RIGHT" if right else f"WRONG: {taken}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
