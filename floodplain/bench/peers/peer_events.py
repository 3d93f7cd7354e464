"""The input files of ``peers``, and the check of a contender's answer.

The files are Parquet, in the order of their events. Peers that do not read Parquet get the same rows as CSV.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from floodplain.bench.harness.lanes import Files
from floodplain.bench.workloads import adverts, counting

COUNT = "count"
JOIN = "join"
WORKLOADS = (COUNT, JOIN)
WORKERS = 2
COLUMNS = {COUNT: ("key", "n", "total"), JOIN: ("ad", "impression", "click")}
CAME = "came_ms"
"""The column with the output time of each row, in answers that have it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a contender's input."""

    keys: int
    rows: int
    """Rows per file."""
    ads: int
    rows_per_s: int
    """Events in a second of event time."""
    warm: int
    """Further files of the warm-up after the first ``fill``, which have every key; the join has as many."""
    timed: int

    def divided(self, by: int) -> "Scale":
        return Scale(self.keys // by, self.rows // by, self.ads // by, self.rows_per_s // by, self.warm, self.timed)

    @property
    def fill(self) -> int:
        return -(-self.keys // self.rows)

    @property
    def span_ms(self) -> int:
        """The event time that all files span."""
        return (self.fill + self.warm + self.timed) * self.rows * 1000 // self.rows_per_s


@dataclass(slots=True)
class Feed:
    """The files of one workload at one scale."""

    workload: str
    scale: Scale
    folder: Path
    warm: list[Path] = field(init=False)
    timed: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        tables = _counts(self.scale) if self.workload == COUNT else _adverts(self.scale)
        files = Files(self.folder / "parquet")
        paths = [files.write(table) for table in tables]
        self.warm, self.timed = paths[: -self.scale.timed], paths[-self.scale.timed :]

    def files(self, form: str) -> tuple[list[str], list[str]]:
        """The files of the warm-up and the timed ones in this form, written if they do not exist yet.

        ``dealt``: all rows as one CSV file for each worker, row by row in turn, so that parallel readers do not add to the
        disorder of events, in whatever order they read files.
        """
        if form == "parquet":
            return [str(path) for path in self.warm], [str(path) for path in self.timed]
        folder = self.folder / form
        if not folder.exists():
            folder.mkdir()
            paths = [*self.warm, *self.timed]
            if form == "csv":
                for path in paths:
                    _write_csv(pq.read_table(path), folder / f"{path.stem}.csv", header=True)
            else:
                rows = pa.concat_tables([pq.read_table(path) for path in paths])
                for worker in range(WORKERS):
                    dealt = rows.take(pa.array(np.arange(worker, len(rows), WORKERS)))
                    _write_csv(dealt, folder / f"{worker}.csv", header=False)
        if form == "csv":
            warm, timed = ([str(folder / f"{path.stem}.csv") for path in part] for part in (self.warm, self.timed))
            return warm, timed
        return [], sorted(map(str, folder.iterdir()))

    @property
    def timed_rows(self) -> int:
        return sum(pq.read_metadata(path).num_rows for path in self.timed)

    def progress(self, files: Sequence[Path]) -> int:
        """The progress of a contender after these files: rows counted, or pairs joined."""
        with duckdb.connect() as connection:
            if self.workload == COUNT:
                return sum(pq.read_metadata(path).num_rows for path in files)
            return int(adverts.wanted(files, connection).aggregate("count(*)").fetchall()[0][0])


def _write_csv(rows: pa.Table, path: Path, *, header: bool) -> None:
    """Without the timestamp column: another column has it as milliseconds."""
    plain = rows.select([name for name in rows.column_names if rows.schema.field(name).type != adverts.TIME])
    pyarrow.csv.write_csv(plain, path, pyarrow.csv.WriteOptions(include_header=header, quoting_style="none"))


def _counts(scale: Scale) -> Iterator[pa.Table]:
    rng = np.random.default_rng(7)
    for ids in np.array_split(rng.permutation(scale.keys), scale.fill):
        yield counting.events(ids, rng)
    for _ in range(scale.warm + scale.timed):
        yield counting.events(rng.integers(0, scale.keys, scale.rows), rng)


def _adverts(scale: Scale) -> Iterator[pa.Table]:
    rng = np.random.default_rng(8)
    for number in range(scale.fill + scale.warm + scale.timed):
        yield adverts.events(number * scale.rows, scale.rows, scale.ads, scale.rows_per_s, rng)


Reader = Callable[[duckdb.DuckDBPyConnection, Path, tuple[str, ...]], Any]

READERS: dict[str, Reader] = {
    "parquet": lambda connection, folder, names: connection.read_parquet(str(folder / "*.parquet")),  # noqa: ARG005
    "csv": lambda connection, folder, names: connection.read_csv(str(folder / "*.csv"), header=True),  # noqa: ARG005
    "csv_bare": lambda connection, folder, names: connection.read_csv(str(folder / "answer" / "*"), names=[*names, CAME]),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a contender: files of one form in a folder."""

    feed: Feed
    form: str
    folder: Path

    def right(self) -> bool:
        """Compares with DuckDB: the newest row of each key (the one with the largest count) of a count, all rows of a join."""
        with duckdb.connect() as connection:
            actual = self._rows(connection)
            fed = [*self.feed.warm, *self.feed.timed]
            if self.feed.workload == COUNT:
                wanted = connection.read_parquet([str(path) for path in fed]).aggregate(
                    "key, count(*)::bigint as n, sum(amount)::bigint as total"
                )
                actual = actual.aggregate("key, max(n)::bigint as n, arg_max(total, n)::bigint as total")
            else:
                wanted = adverts.wanted(fed, connection)
            return not any(_missing(connection, one, other) for one, other in ((wanted, actual), (actual, wanted)))

    def seconds(self) -> float:
        """From the end of the warm-up to the last row, by the output times of rows. The warm-up ends once as much has been
        counted or joined as its files yield."""
        with duckdb.connect() as connection:
            self._rows(connection, CAME).create_view("published")
            step = "n - lag(n, 1, 0) over (partition by key order by n)" if self.feed.workload == COUNT else "1"
            connection.execute(
                f"create table steps as select {CAME}, sum(step) as step "
                f"from (select {CAME}, {step} as step from published) group by all"
            )
            ((began, ended),) = connection.sql(
                f"select min({CAME}) filter (done >= {self.feed.progress(self.feed.warm)}), max({CAME}) "
                f"from (select {CAME}, sum(step) over (order by {CAME}) as done from steps)"
            ).fetchall()
        return max(ended - began, 1) / 1000

    def _rows(self, connection: duckdb.DuckDBPyConnection, *more: str) -> Any:
        names = COLUMNS[self.feed.workload]
        return READERS[self.form](connection, self.folder, names).select(*names, *more)


def _missing(connection: duckdb.DuckDBPyConnection, one: Any, other: Any) -> bool:
    one.create_view("one", replace=True)
    other.create_view("other", replace=True)
    return bool(connection.sql("(from one) except all (from other) limit 1").fetchall())
