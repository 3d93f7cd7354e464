"""``counter`` and ``process``: what is checked, what is timed, and both at a size where times mean nothing."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.bench import counter, process, registry
from floodplain.bench.harness import lanes
from floodplain.bench.harness.frame import Bench
from floodplain.bench.worker_race import RaceSizes
from floodplain.bench.workloads.counting import Count, counted_right, events
from floodplain.bench.workloads.visits import EPOCH_MS, Visits, closing, processed_right, window_end
from floodplain.bench.workloads.visits import events as visits
from floodplain.clock import ManualClock, SystemClock
from floodplain.testing.process_kit import ProcessKit

TINY_COUNTER = counter.Sizes(
    keys=300,
    rows=200,
    block=1,
    rounds=1,
    their_rounds=1,
    slots=1,
    transform_keys=20,
    transform_rows=20,
    transform_epochs=0,
    small_rows=10,
    small_block=1,
    small_rounds=1,
    other_slots=(3,),
    slot_rounds=1,
    factor=2,
    growth_rounds=1,
    fill_rows=600,
    workers=RaceSizes(
        keys=300,
        rows=200,
        block=1,
        rounds=1,
        slots=1,
        small_rows=10,
        small_block=1,
        small_rounds=1,
        resident_epochs=(0, 10, 10, 20),
        transform_rows=0,
        fill_rows=600,
    ),
)


def counted(tmp_path: Path, form: type[lanes.Files] = lanes.Files) -> tuple[list[Path], list[pa.Table]]:
    """Three epochs, and what our process function makes of them."""
    files, rng = form(tmp_path / "files"), np.random.default_rng(1)
    kit = ProcessKit(Count(), rows="key string, amount long", keys=["key"])
    fed, made = [], []
    for _ in range(3):
        rows = events(rng.integers(0, 50, 40), rng)
        fed.append(files.write(rows))
        made.append(pa.Table.from_pylist(kit.epoch(rows)))
    return fed, made


def published(tmp_path: Path, made: list[pa.Table]) -> Path:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for number, rows in enumerate(made):
        pq.write_table(rows, out / f"{number}.parquet")
    return out


def changed(rows: pa.Table, column: str) -> pa.Table:
    """The first row's number is one more."""
    values = rows.column(column).to_pylist()
    return rows.set_column(rows.column_names.index(column), column, pa.array([values[0] + 1, *values[1:]]))


@pytest.mark.parametrize("form", [lanes.Files, lanes.JsonFiles])
def test_what_our_counter_publishes_is_right_and_every_other_output_wrong(tmp_path: Path, form: type[lanes.Files]) -> None:
    fed, made = counted(tmp_path, form)
    assert [lanes._rows_in(path) for path in fed] == [40, 40, 40]
    assert counted_right(fed, published(tmp_path, made), stateful=True)
    last = made[-1]
    wrong = {
        "an epoch is missing": made[:-1],
        "an epoch is there twice": [*made, last],
        "a row is missing": [*made[:-1], last.slice(1)],
        "a count is wrong": [*made[:-1], changed(last, "n")],
        "a sum is wrong": [*made[:-1], changed(last, "total")],
        "state was lost": [made[0], made[1], made[0].slice(0, len(last))],
    }
    for why, rows in wrong.items():
        assert not counted_right(fed, published(tmp_path, rows), stateful=True), why
    assert not counted_right(fed, published(tmp_path, made), stateful=False)


def test_counts_without_state_add_up(tmp_path: Path) -> None:
    fed, _ = counted(tmp_path)
    made = []
    for path in fed:
        totals = pq.read_table(path).group_by("key").aggregate([("amount", "count"), ("amount", "sum")])
        made.append(totals.select(["key", "amount_count", "amount_sum"]).rename_columns(["key", "n", "total"]))
    assert counted_right(fed, published(tmp_path, made), stateful=False)
    assert not counted_right(fed, published(tmp_path, [*made[:-1], changed(made[-1], "total")]), stateful=False)


def test_what_our_process_function_publishes_is_right_and_every_other_output_wrong(tmp_path: Path) -> None:
    files, rng = lanes.Files(tmp_path / "files"), np.random.default_rng(2)
    kit = ProcessKit(Visits(), rows="key string, ts timestamp, at long, amount long", keys=["key"], event_time="ts")
    tables = [visits(epoch, 30, 10, rng) for epoch in range(7)]
    tables += closing(len(tables))
    fed, made, watermark_ms = [], [], 0
    for rows in tables:
        fed.append(files.write(rows))
        made.append(pa.Table.from_pylist(kit.epoch(rows, watermark_ms=watermark_ms)))
        watermark_ms = max(rows.column("at").to_pylist())
    assert processed_right(fed, published(tmp_path, made))
    timed = next(number for number, rows in enumerate(made) if max(rows.column("at").to_pylist()) > 0)
    assert timed < len(made) - 2, "timers fire before the end too"
    for wrong in (made[:-1], [*made, made[0]], [changed(made[0], "n"), *made[1:]], [changed(made[timed], "at"), *made[1:]]):
        assert not processed_right(fed, published(tmp_path, wrong))


@pytest.mark.parametrize(("at", "end"), [(0, 30_000), (29_999, 30_000), (30_000, 60_000)])
def test_a_window_ends_after_three_epochs(at: int, end: int) -> None:
    assert window_end(at) == end
    assert end % EPOCH_MS == 0


def test_a_block_lasts_from_the_start_of_its_first_batch_to_the_end_of_its_last() -> None:
    def batch(second: float, ms: int) -> Any:
        return SimpleNamespace(timestamp=f"2026-01-01T00:00:0{second}Z", durationMs={"triggerExecution": ms, "addBatch": ms // 2})

    block = lanes._block([batch(1.0, 400), batch(2.5, 700)])
    assert block.seconds == pytest.approx(2.2)
    assert block.epochs_ms == (400, 700)
    assert block.phases_ms == {"triggerExecution": 550, "addBatch": 275}


class Recorder:
    """In place of a lane: each block takes so long."""

    def __init__(self, name: str, ms: int, fed: list[tuple[str, int]]) -> None:
        self.name, self.ms, self.fed = name, ms, fed

    def feed(self, paths: list[Path]) -> lanes.Block:
        self.fed.append((self.name, len(paths)))
        return lanes.Block(self.ms / 1000, (self.ms,), {})


@pytest.mark.parametrize(
    ("warm_up", "warm"),
    [
        (lanes.WarmUp(2), 2),
        (lanes.WarmUp(1, seconds=0.35, most=9), 4),
        (lanes.WarmUp(1, seconds=0.35, most=3), 3),
        (lanes.WarmUp(5, seconds=0.35, most=3), 5),
        (lanes.WarmUp(0), 0),
    ],
)
def test_a_race_warms_up_until_the_quickest_was_busy_long_enough(tmp_path: Path, warm_up: lanes.WarmUp, warm: int) -> None:
    path = lanes.Files(tmp_path / "files").write(pa.table({"key": ["a", "b"]}))
    fed: list[tuple[str, int]] = []
    given = [Recorder("slow", 500, fed), Recorder("quick", 100, fed)]
    entries = [lanes.Entry(each.name, each, lambda _: [path]) for each in given]  # type: ignore[arg-type]
    laps = lanes.race(Bench("test", ManualClock(0)), "race", entries, rounds=2, warm_up=warm_up)
    assert len(fed) == 2 * (warm + 2)
    assert [len(lap.blocks) for lap in laps.values()] == [2, 2]


def test_a_race_leaves_out_the_warm_up_and_those_that_have_no_files(tmp_path: Path) -> None:
    files = lanes.Files(tmp_path / "files")
    path = files.write(pa.table({"key": ["a", "b"]}))
    fed: list[tuple[str, int]] = []
    slow, quick = Recorder("slow", 500, fed), Recorder("quick", 100, fed)
    entries = [
        lanes.Entry("slow", slow, lambda number: [path] if number == 1 else []),  # type: ignore[arg-type]
        lanes.Entry("quick", quick, lambda number: [path, path]),  # type: ignore[arg-type]
    ]
    laps = lanes.race(Bench("test", ManualClock(0)), "race", entries, rounds=2)
    assert fed == [("quick", 2), ("quick", 2), ("slow", 1), ("quick", 2)]
    assert [len(laps[name].blocks) for name in ("slow", "quick")] == [1, 2]
    assert laps["slow"].rows_per_s == pytest.approx(4)
    assert laps["quick"].rows_per_s == pytest.approx(40)


def test_a_paired_ratio_does_not_see_what_slows_both_of_a_round() -> None:
    one, other = lanes.Laps(), lanes.Laps()
    for slowed in (1.0, 1.5, 4.0, 1.0, 2.0):
        one.add(lanes.Block(0.8 * slowed, (800,), {}), rows=1)
        other.add(lanes.Block(slowed, (1000,), {}), rows=1)
    assert lanes.paired(one, other) == pytest.approx(0.8)


def test_a_paired_ratio_needs_both_of_each_round() -> None:
    one, other = lanes.Laps(), lanes.Laps()
    one.add(lanes.Block(1.0, (1000,), {}), rows=1)
    with pytest.raises(ValueError, match="shorter"):
        lanes.paired(one, other)


def test_each_has_its_turn_in_every_round_and_follows_different_others() -> None:
    orders = lanes.turns(5, 8)
    assert orders == lanes.turns(5, 8)
    assert all(sorted(order) == list(range(5)) for order in orders)
    sequence = [turn for order in orders for turn in order]
    followed = {turn: {before for before, after in pairwise(sequence) if after == turn} for turn in range(5)}
    assert all(len(others) > 1 and turn not in others for turn, others in followed.items())


def test_both_are_known_by_name() -> None:
    assert {"counter", "process"} <= set(registry.NAMES)


@pytest.mark.soak
@pytest.mark.spark
def test_a_tiny_counter_on_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = counter.run(TINY_COUNTER, SystemClock(), spark)
    assert msgspec.json.decode(msgspec.json.encode(result)) == result
    assert result["checks"] == {
        f"{name}_equals_duckdb": True
        for name in (
            *("floodplain", "floodplain_large", "stateless", "spark_rocksdb", "spark_memory"),
            *("engine_tasks", "engine_workers", "engine_bridge", "engine_tasks_json", "engine_bridge_json"),
        )
    }
    assert (
        set(counter.TARGETS) - {"vs_transform_with_state", "workers_vs_transform_with_state"}
        == set(result["figures"]["targets"])
        <= set(result["ratios"])
    )
    assert set(result["figures"]["slots"]) == {"3"}
    assert not list(tmp_path.iterdir()), "the benchmark left files behind"


@pytest.mark.soak
@pytest.mark.spark
def test_a_tiny_counter_with_transform_with_state_on_spark(spark: Any) -> None:
    result = counter.run(replace(TINY_COUNTER, transform_epochs=1), SystemClock(), spark)
    assert result["checks"].pop("transform_with_state_equals_duckdb")
    assert result["ratios"]["vs_transform_with_state"] > 0


@pytest.mark.soak
@pytest.mark.spark
def test_a_tiny_process_on_spark(spark: Any) -> None:
    result = process.run(process.Sizes(60, 1, 20, 1, 10, 1), SystemClock(), spark)
    assert result["checks"] and all(result["checks"].values())
    assert set(result["figures"]["targets"]) <= set(process.TARGETS)
