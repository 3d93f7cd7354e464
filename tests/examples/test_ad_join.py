"""The demo's join and its verdict, without Spark."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from examples.ad_join import START_MS, WITHIN_MS, AdJoin, exit_code
from floodplain.testing.process_kit import ProcessKit

ROWS = "kind string, ad long, at_ms long"


@pytest.fixture(scope="module")
def events() -> pa.Table:
    rng = np.random.default_rng(3)
    kind = np.where(rng.random(400) < 0.7, "impression", "click")
    return pa.table({"kind": kind, "ad": rng.integers(0, 20, 400), "at_ms": START_MS + rng.integers(0, 2 * WITHIN_MS, 400)})


@pytest.fixture(scope="module")
def joined(events) -> pa.Table:
    kit = ProcessKit(AdJoin(), rows=ROWS, keys=["ad"], event_time="at_ms")
    made = [row for start in range(0, 400, 100) for row in kit.epoch(events.slice(start, 100))]
    return pa.Table.from_pylist(made, pa.schema({"ad": pa.int64(), "impression": pa.int64(), "click": pa.int64()}))


def judged(folder, events: pa.Table, joined: pa.Table) -> tuple[int, str]:
    for name, rows in (("events", events), ("joined", joined)):
        (folder / name).mkdir()
        pq.write_table(rows, folder / name / "0.parquet")
    console = Console(file=io.StringIO(), width=200)
    return exit_code(folder, console), console.file.getvalue()


def test_the_right_output_is_exit_code_0(tmp_path, events, joined):
    code, said = judged(tmp_path, events, joined)
    assert code == 0 and f"{len(joined):,} joined rows: the output equals the batch join" in said
    assert len(joined) > 500


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows: rows.slice(1), "1 lost, 0 extra"),
        (lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]), "0 lost, 1 extra"),
        (lambda rows: pa.concat_tables([rows.slice(1), rows.slice(1, 1)]), "1 lost, 1 extra"),
    ],
)
def test_a_row_lost_or_repeated_is_exit_code_1(tmp_path, events, joined, spoil, said):
    code, told = judged(tmp_path, events, spoil(joined))
    assert code == 1 and "DIFFERS FROM" in told and said in told
