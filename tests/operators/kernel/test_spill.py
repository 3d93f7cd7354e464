"""Epochs larger than memory: same results, each key called once, and no more rows held than the budget allows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from floodplain.errors import Conflict, UserError
from floodplain.keys import hash_columns, key_group
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.operators.kernel.spill import Spill
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import Broadcast, List, Map, TaskValue, Value
from floodplain.store.rows.layout import HASH
from floodplain.testing.process_kit import ProcessKit

KEY_GROUPS = 64
SCHEMA = pa.schema({"user": pa.int64(), "n": pa.int64(), HASH: pa.int64()})


def batches(users: np.ndarray, size: int = 1000) -> list[pa.RecordBatch]:
    """Rows numbered as they come, with their hash as Spark gives it."""
    hashes = hash_columns([pa.array(users)]).view(np.int64)
    rows = pa.table({"user": users, "n": np.arange(len(users)), HASH: hashes})
    return rows.to_batches(max_chunksize=size)


def groups_of_users(users: np.ndarray) -> np.ndarray:
    return key_group(hash_columns([pa.array(users)]), KEY_GROUPS)


def users_of_groups(users: np.ndarray, low: int, high: int) -> np.ndarray:
    found = groups_of_users(users)
    return users[(found >= low) & (found < high)]


def spill(budget_bytes: int, folder: Path) -> Spill:
    return Spill(budget_bytes, folder, KEY_GROUPS, ["user"])


def test_what_fits_is_one_bucket_and_never_written(tmp_path):
    given = batches(np.arange(5000))
    size = sum(batch.nbytes for batch in given)
    (bucket,) = spill(size, tmp_path / "there is no such folder").buckets(given, SCHEMA, ((0, 8), (30, 64)))
    assert bucket.groups == ((0, 8), (30, 64)) and bucket.rows == pa.Table.from_batches(given)
    (bucket,) = spill(size, tmp_path / "there is no such folder").buckets([], SCHEMA, ((0, 8),))
    assert bucket.groups == ((0, 8),) and bucket.rows == SCHEMA.empty_table()


def test_buckets_have_all_rows_once_by_key_group_and_in_order(tmp_path):
    rng = np.random.default_rng(7)
    users = np.concatenate([users_of_groups(np.arange(20_000), *span) for span in ((4, 20), (40, 64))])
    users = rng.choice(users, 60_000)
    # One key group has a third of the rows, so that one spread is not fine enough.
    users[::3] = rng.choice(users_of_groups(users, 41, 42), len(users[::3]))
    budget = 200_000
    seen: list[tuple[int, int]] = []
    groups: list[tuple[int, int]] = []
    sizes = []
    for bucket in spill(budget, tmp_path).buckets(batches(users), SCHEMA, ((4, 20), (40, 64))):
        inside = groups_of_users(bucket.rows.column("user").to_numpy())
        members = [group for low, high in bucket.groups for group in range(low, high)]
        assert np.isin(inside, members).all()
        groups += members
        seen += zip(bucket.rows.column("user").to_pylist(), bucket.rows.column("n").to_pylist(), strict=True)
        sizes.append(bucket.rows.nbytes)
        assert (bucket.rows.nbytes > budget) == (members == [41])
        assert bool(bucket.too_large_bytes) == (members == [41])
    assert groups == [*range(4, 20), *range(40, 64)]
    assert sorted(seen) == sorted(zip(users.tolist(), range(len(users)), strict=True))
    newest: dict[int, int] = {}
    for user, n in seen:
        assert n > newest.get(user, -1)
        newest[user] = n
    assert sum(sizes) / budget < len(sizes) < 3 * sum(sizes) / budget
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_within_the_budget_and_files_go_as_they_are_used(tmp_path):
    budget = 400_000
    users = np.arange(200_000)
    before = pa.total_allocated_bytes()

    def coming():
        for start in range(0, len(users), 1000):
            yield batches(users[start : start + 1000])[0]

    left = []
    most = 0
    for bucket in spill(budget, tmp_path).buckets(coming(), SCHEMA, ((0, 64),)):
        most = max(most, pa.total_allocated_bytes() - before)
        left.append(sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()))
        del bucket
    assert len(left) >= 12 and 24 * len(users) > 10 * budget
    assert most < 2.5 * budget
    assert left[-1] == 0 and left[0] > 3_000_000 and left == sorted(left, reverse=True)


def test_rows_count_as_they_are_when_no_dictionary_stands_for_them(tmp_path):
    schema = SCHEMA.append(pa.field("text", pa.string()))
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000), pa.int32()), pa.array(["x" * 5000]))
    given = [batch.append_column("text", text) for batch in batches(np.arange(5000))]
    assert sum(batch.nbytes for batch in given) < 1 << 20
    sizes = [bucket.rows.nbytes for bucket in spill(2 << 20, tmp_path).buckets(given, schema, ((0, KEY_GROUPS),))]
    assert sum(sizes) > 25_000_000 and max(sizes) <= 2 << 20


def test_files_are_gone_when_it_is_given_up(tmp_path):
    buckets = spill(10_000, tmp_path).buckets(batches(np.arange(5000)), SCHEMA, ((0, 64),))
    next(buckets)
    assert list(tmp_path.iterdir())
    buckets.close()
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_another_slot_is_refused_and_files_are_gone(tmp_path):
    with pytest.raises(Conflict, match="does not own its key group"):
        list(spill(10_000, tmp_path).buckets(batches(np.arange(5000)), SCHEMA, ((0, 63),)))
    assert list(tmp_path.iterdir()) == []


ROWS = "user long, n long"


class Busy(KeyedProcess):
    output = "user long, total long, order array<long>, limit long"
    calls: dict[int, int] = {}  # noqa: RUF012 — user → calls, over all buckets
    broadcasts: list[int] = []  # noqa: RUF012
    total = Value("long", default=0)
    trail = List("long")
    by_n = Map("long", "long")
    seen = TaskValue("long", 0, split=lambda value, n: [value] + [0] * (n - 1), merge=sum)
    limits = Broadcast("string", "long")

    def process(self, key, rows, ctx):
        self.calls[key.user] = self.calls.get(key.user, 0) + 1
        for row in rows:
            if row.n == -1:
                raise ValueError("minus one")
            self.total.set(self.total.get() + row.n)
            self.trail.append(row.n)
            self.by_n.merge(row.n, 1)
            self.seen.set(self.seen.get() + 1)
        ctx.timer(key.user % 7)
        yield key.user, self.total.get(), [row.n for row in rows], self.limits.get("all")

    def on_timer(self, key, at, ctx):
        self.seen.set(self.seen.get() + 1000)
        yield key.user, -at, [], None

    def on_broadcast(self, rows, ctx):
        self.broadcasts.append(len(rows))
        for row in rows:
            self.limits.put("all", self.limits.get("all", 0) + row.limit)


def busy(epoch_bytes: int) -> ProcessKit:
    settings = StoreSettings(key_groups=KEY_GROUPS, epoch_bytes=epoch_bytes, inline_bytes=500)
    return ProcessKit(Busy(), rows=ROWS, keys=["user"], has_watermark=True, broadcast="limit long", settings=settings, slots=2)


TABLES = ("kit", "kit__trail", "kit__by_n", "kit__seen", "kit__limits", "kit__event_timers")


def test_a_spilled_epoch_is_as_any_other(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    whole, spilled = busy(1 << 30), busy(2_000)
    rng = np.random.default_rng(3)
    for epoch in range(3):
        rows = pa.table({"user": rng.integers(0, 300, 2000), "n": rng.integers(0, 50, 2000)})
        results = []
        for kit in (whole, spilled):
            Busy.calls.clear()
            Busy.broadcasts.clear()
            out = kit.epoch(rows, broadcast=[{"limit": epoch + 1}], watermark_ms=epoch * 3)
            results.append((sorted(out, key=repr), [sorted(kit.state(table), key=repr) for table in TABLES]))
            assert set(Busy.calls.values()) == {1} and len(Busy.calls) == len(set(rows.column("user").to_pylist()))
            assert Busy.broadcasts == [1, 1]
        assert results[0] == results[1]
    assert whole.warnings == () and list(tmp_path.iterdir()) == []
    runs = {name: len(kit.store.head.runs["kit"]) for name, kit in (("whole", whole), ("spilled", spilled))}
    assert runs["spilled"] > 3 * runs["whole"]


def test_a_key_with_very_many_rows_is_processed_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kit = busy(2_000)
    out = kit.epoch(pa.table({"user": [1] * 500 + [2], "n": [1] * 501}))
    assert {found["user"]: found["total"] for found in out} == {1: 500, 2: 1}
    (warning,) = kit.warnings
    assert "operator kit: the rows of key group" in warning and "8000 bytes" in warning


def test_an_error_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match="minus one"):
        busy(2_000).epoch(pa.table({"user": np.arange(1000), "n": [-1] * 1000}))
    assert list(tmp_path.iterdir()) == []
