"""Files as input of a stream."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FIRST_MTIME_S = 1_700_000_000


def put_table(folder: Path, number: int, rows: pa.Table) -> None:
    """A file that appears whole. Spark takes files in the order of their times, of which several may be alike: these follow the
    numbers."""
    folder.mkdir(exist_ok=True, parents=True)
    temp = folder / f".{number}"
    pq.write_table(rows, temp)
    os.utime(temp, (FIRST_MTIME_S + number,) * 2)
    temp.rename(folder / f"{number:04d}.parquet")
