"""``state-types`` at a size where times mean nothing and answers still must be right."""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from floodplain.bench import registry, repartition, state_types
from floodplain.bench.contenders import memory, ours, plain, rocks
from floodplain.bench.harness import sizes
from floodplain.bench.workloads.state_updates import KINDS, VALUE, Kind, expected, same_rows
from floodplain.clock import SystemClock
from floodplain.errors import BadInput

TINY = sizes.Sizes(
    keys=2_000,
    factor=2,
    rmw_epochs=2,
    growth_rounds=2,
    lookups=50,
    sample=3,
    moves=1,
    type_keys=400,
    updates=2,
    rounds=1,
    points=5,
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.soak
def test_the_result_has_the_form_every_ratio_and_only_true_checks(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], figures: Any
) -> None:
    monkeypatch.setattr(state_types, "QUICK", TINY)
    result = registry.run("state-types", quick=True)
    out, err = capsys.readouterr()
    assert not out, "standard output is the caller's"
    assert msgspec.json.decode(msgspec.json.encode(result)) == result
    assert list(result) == ["bench", "checks", "ratios", "figures"]
    assert result["bench"] == "state-types"
    assert result["checks"] and all(holds is True for holds in result["checks"].values())
    for kind in KINDS:
        for what in ("update", "point", "multi_get", "scan", "checkpoint", "restore", "repartition", "merge"):
            assert result["ratios"][f"{kind.name}_{what}_vs_rocksdb"] > 0
        for contender in (ours.NAME, rocks.NAME, plain.NAME):
            assert result["checks"][f"{kind.name}_{contender}_equals_duckdb"]
    assert set(state_types.TARGETS) == set(result["figures"]["targets"]) <= set(result["ratios"])
    if memory.measurable():
        assert result["checks"]["lookup_memory"]
        assert 0 <= result["figures"]["lookup_rss_anon_mb"] < 100
    assert "rmw_update" in err
    assert not list(temporary.iterdir()), "the benchmark left files behind"
    assert "`floodplain bench state-types --quick --json`" in figures.figures("state-types", result)
    assert import_module("plots").state_types(result).axes


def test_too_little_space_is_said_before_anything_is_written(temporary: Path) -> None:
    huge = sizes.Sizes(keys=1 << 50)
    with pytest.raises(BadInput, match="TMPDIR"):
        state_types.run(huge, SystemClock())
    assert not list(temporary.iterdir())


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(BadInput, match="state-types"):
        registry.run("state-tpyes", True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_comparison_sees_a_row_that_is_missing_doubled_or_different(kind: Kind) -> None:
    rng = np.random.default_rng(5)
    batches = [kind.batch(rng.choice(50, 20, replace=False), number, rng) for number in range(3)]
    rows = expected(kind, batches)
    assert same_rows(kind, rows.take(pa.array(rng.permutation(len(rows)))), rows)
    assert not same_rows(kind, rows.slice(1), rows)
    assert not same_rows(kind, pa.concat_tables([rows.slice(1), rows.slice(1, 1)]), rows)
    assert not same_rows(kind, expected(kind, batches[:2]), rows)
    assert not same_rows(kind, expected(kind, [batches[1], batches[0], batches[2].slice(1)]), rows)


@pytest.mark.parametrize("slots", [1, 4, 7, 1024])
def test_slots_share_all_key_groups_evenly(slots: int) -> None:
    ranges = repartition.ranges(slots)
    assert [group for low, high in ranges for group in range(low, high)] == list(range(repartition.KEY_GROUPS))
    widths = {high - low for low, high in ranges}
    assert max(widths) - min(widths) <= 1


def test_samples_of_a_move_belong_to_the_slot_that_is_asked_for_them() -> None:
    rng = np.random.default_rng(6)
    rows = VALUE.batch(np.arange(500), 0, rng)
    move = repartition.plan(VALUE, rows, 4, 7, sample=5)
    assert [len(keys) for keys in move.samples] == [5] * 7
    for (low, high), keys in zip(repartition.ranges(7), move.samples, strict=True):
        assert all(low <= group < high for group in repartition.groups_of(keys))


def test_memory_of_a_process_that_takes_some_shows_in_the_peak() -> None:
    if not memory.measurable():
        pytest.skip("needs /proc")
    before = memory.anonymous_mb()
    with memory.Peak() as peak:
        held = np.ones(8 << 20)
        assert memory.anonymous_mb() - before > 60
    del held
    assert peak.mb - before > 60
