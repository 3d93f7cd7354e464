"""Puts and deletes of whole rows have quick ways through multi-gets, scans and compactions, which must give what the long ways
give: here the expected rows come from a dict."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.store.read import newest_fast_path, overlay
from floodplain.store.rows.definition import Column, value_table
from floodplain.store.rows.layout import HASH
from floodplain.store.store import Store
from tests.store import forge

TABLE = value_table(
    "t",
    {"k": pa.string()},
    {
        "n": Column(pa.int64(), default=-1),
        "w": pa.string(),
        "on": pa.bool_(),
        "at": pa.timestamp("us"),
        "some": pa.int32(),
        "gap": pa.month_day_nano_interval(),
    },
)
CHUNKS = replace(forge.SETTINGS, chunk_bytes=4000, window_bytes=40_000)
Rows = dict[str, dict[str, Any]]


def table_of(rows: Rows, hashes: dict[str, int] | None = None) -> pa.Table:
    table = pa.Table.from_pylist([{"k": key, **values} for key, values in rows.items()], _SCHEMA)
    if hashes is None:
        return table
    return table.append_column(HASH, pa.array([hashes[key] for key in rows], pa.uint64()))


_SCHEMA = pa.schema([("k", pa.string()), *((field.name, field.arrow) for field in TABLE.values)])


def some_values(rng: np.random.Generator) -> dict[str, Any]:
    number = int(rng.integers(1000))
    return {
        "n": number,
        "w": None if number % 7 == 0 else "x" * (number % 9),
        "on": [True, False, None][number % 3],
        "at": pa.scalar(number, pa.timestamp("us")).as_py(),
        "some": None if number % 5 == 0 else number,
        "gap": pa.MonthDayNano((number, 0, 0)),
    }


class History:
    """Epochs of puts and deletes in a store, and what they come to."""

    def __init__(self, seed: int, store: Store) -> None:
        self.rng, self.store, self.rows = np.random.default_rng(seed), store, Rows()
        self.known: dict[str, None] = {}
        """Every key that ever was, deleted or not."""

    def epoch(self, keys: np.ndarray, deletes: int = 0) -> None:
        put = {f"key-{number}": some_values(self.rng) for number in keys.tolist()}
        gone = [str(key) for key in self.rng.permutation(list(self.rows))[:deletes] if key not in put]
        with self.store.writer("me", force=True) as writer:
            epoch = writer.epoch()
            epoch.put("t", table_of(put))
            if gone:
                epoch.delete("t", pa.table({"k": gone}))
            epoch.commit()
        self.rows = {key: row for key, row in {**self.rows, **put}.items() if key not in gone}
        self.known |= dict.fromkeys(put)

    def check(self) -> None:
        asked = [*self.known, "nobody", "key-nobody"]
        self.rng.shuffle(asked)
        found = (
            self.store.snapshot()
            .table("t")
            .multi_get(pa.table({"k": asked}), columns=[field.name for field in TABLE.values], now_ms=0)
        )
        absent = {"n": -1, "w": None, "on": None, "at": None, "some": None, "gap": None}
        assert found.aligned().to_pylist() == [self.rows.get(key, absent) for key in asked]
        whole = {row.pop("k"): row for row in self.store.snapshot().table("t").to_arrow().to_pylist()}
        assert whole == self.rows


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("place", [forge.memory, forge.objects], ids=["at_hand", "far"])
def test_any_history_of_puts_and_deletes(seed: int, place: Any) -> None:
    history = History(seed, forge.with_table(TABLE, place(), CHUNKS))
    for number in range(7):
        few_new = history.rng.choice(600 + 20 * number, 250, replace=False)
        history.epoch(few_new if number else np.arange(600), deletes=0 if seed % 2 else 30)
        history.check()
        if number in (3, 6):
            before = len(history.store.head.runs["t"])
            assert list(history.store.compact(full=True))
            assert len(history.store.head.runs["t"]) < before
            history.check()


def test_the_quick_ways_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above would say nothing of them."""
    taken: list[str] = []

    def spied(module: Any, name: str) -> None:
        real = getattr(module, name)

        def spy(*args: Any) -> Any:
            taken.append(name)
            return real(*args)

        monkeypatch.setattr(module, name, spy)

    spied(newest_fast_path, "_put_together")
    spied(overlay, "_written_over")
    history = History(1, forge.with_table(TABLE, forge.memory(), CHUNKS))
    history.epoch(np.arange(600))
    history.epoch(np.arange(0, 600, 3))
    history.check()
    assert set(taken) == {"_put_together", "_written_over"}


@pytest.mark.parametrize("new", [5, 400], ids=["few", "most"])
def test_new_keys_come_in_their_places(new: int) -> None:
    history = History(3, forge.with_table(TABLE, forge.memory(), CHUNKS))
    history.epoch(np.arange(500))
    history.epoch(np.arange(100, 500 + new))
    history.epoch(np.arange(200, 510 + new))
    history.check()
    list(history.store.compact(full=True))
    history.check()


def test_keys_that_share_a_hash_stay_apart() -> None:
    """Older and newer run each have one of two keys of one hash; then a run has both."""
    store = forge.with_table(TABLE, forge.memory(), CHUNKS)
    hashes = {"ada": 77 << 50, "bob": 77 << 50, "eve": 99 << 50}
    rng = np.random.default_rng(2)
    rows = {name: some_values(rng) for name in hashes}

    def put(*names: str) -> None:
        with store.writer("me", force=True) as writer:
            writer.put("t", table_of({name: rows[name] for name in names}, hashes))

    def check(*names: str) -> None:
        asked = pa.table({"k": list(names), HASH: pa.array([hashes[name] for name in names], pa.uint64())})
        found = store.snapshot().table("t").multi_get(asked, columns=[field.name for field in TABLE.values])
        assert found.aligned().to_pylist() == [rows[name] for name in names]

    put("ada", "eve")
    put("bob")
    check("ada", "bob", "eve")
    rows["ada"] = some_values(rng)
    put("ada", "bob", "eve")
    check("eve", "bob", "ada")
    list(store.compact(full=True))
    check("ada", "bob", "eve")
    assert store.snapshot().table("t").count() == 3
