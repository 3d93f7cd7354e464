"""Different keys of one hash stay different keys, and cost what sorting them costs."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodplain.operators.kernel.key_grouping import group
from floodplain.store.read import lookup, scan
from floodplain.store.rows import row_classes
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.store import Store
from tests.store import forge

HASHES = (0, 12_345, 1 << 63, (1 << 64) - 1)
TEXT, LONG = pa.string(), pa.int64()
TABLES = {
    "values": value_table("t", {"k": TEXT}, {"v": Column(LONG, 0, "sum")}),
    "pairs": value_table("t", {"k": TEXT, "l": pa.float64()}, {"v": LONG}),
    "structs": value_table("t", {"k": pa.struct([("a", pa.list_(LONG)), ("b", pa.float32())])}, {"v": LONG}),
    "list": list_table("t", {"k": TEXT}, {"v": LONG}, position="s"),
    "map": map_table("t", {"k": TEXT}, {"s": LONG}, {"v": LONG}),
    "timers": timer_table("t", {"k": TEXT}, {"v": LONG}, time="s"),
}
Entry = tuple[int, int]
"""The number of a key, and a sub-key."""


def key(species: str, number: int) -> tuple[Any, ...]:
    if species == "pairs":
        return f"{number // 3}", (0.0, None, float("nan"))[number % 3]
    if species == "structs":
        return ({"a": ([], None, [number], [number, 1])[number % 4], "b": float(number // 4)},)
    return (f"key-{number:05}",)


def table(
    species: str, entries: Sequence[Entry], hashes: int, values: Sequence[int] | None = None, *, subs: bool = True
) -> pa.Table:
    """Entries as a caller hands them over, with so many different hashes that are believed."""
    schema, keys = TABLES[species], [key(species, number) for number, _ in entries]
    columns = {field.name: pa.array([each[at] for each in keys], field.arrow) for at, field in enumerate(schema.keys)}
    if subs:
        columns |= {field.name: pa.array([sub for _, sub in entries], field.arrow) for field in schema.subkeys}
    if values is not None:
        columns["v"] = pa.array(values, LONG)
    return pa.table({**columns, "_hash": pa.array([HASHES[number % hashes] for number, _ in entries], pa.uint64())})


def row(species: str, entry: Entry, value: int) -> str:
    return repr((*key(species, entry[0]), *((entry[1],) if TABLES[species].subkeys else ()), value))


def rows_in(found: pa.Table) -> list[str]:
    return [repr(tuple(each.values())) for each in found.to_pylist()]


@pytest.mark.parametrize("species", TABLES)
@pytest.mark.parametrize("hashes", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_a_store_is_a_dict_whatever_keys_share_a_hash(species: str, hashes: int, seed: int) -> None:
    rng = random.Random(f"{species} {hashes} {seed}")
    store, model, subs = forge.with_table(TABLES[species]), dict[Entry, int](), 3 if TABLES[species].subkeys else 1
    for step in range(5):
        before = dict(model)
        put, gone = ([(rng.randrange(60), rng.randrange(subs)) for _ in range(count)] for count in (rng.choice([5, 200]), 10))
        values = [rng.randrange(9) for _ in put]
        deletes = table(species, gone, hashes)
        forge.write(store, "t", ("put", table(species, put, hashes, values)), ("delete", deletes))
        model |= dict(zip(put, values, strict=True))
        model = {entry: value for entry, value in model.items() if entry not in gone}
        if step:
            check_changes(store, species, before, model)
        if step % 2:
            list(store.compact(full=True))
        check_reads(store, species, hashes, model, [(rng.randrange(70), rng.randrange(subs)) for _ in range(150)])


def check_changes(store: Store, species: str, before: dict[Entry, int], after: dict[Entry, int]) -> None:
    epoch = store.head.epoch
    new, old = Counter[int](), Counter[int]()
    for change in store.diff("t", epoch - 1, epoch):
        value = f"f{TABLES[species].values[0].id}"
        for rows, counts in ((change.added, new), (change.after, new), (change.before, old), (change.deleted, old)):
            counts.update(rows.column(value).to_pylist())
    assert new == Counter(value for _, value in after.items() - before.items())
    assert old == Counter(value for _, value in before.items() - after.items())


def check_reads(store: Store, species: str, hashes: int, model: dict[Entry, int], asked: Sequence[Entry]) -> None:
    """A scan, and multi-gets by key and by entry; some are asked for twice, others are not there."""
    view = store.snapshot().table("t")
    assert sorted(rows_in(view.to_arrow())) == sorted(row(species, *item) for item in model.items())
    found = view.multi_get(table(species, asked, hashes, subs=False))
    answers = list(zip(found.key_number.tolist(), rows_in(found.rows), strict=True))
    of_key = [(place, item) for place, (number, _) in enumerate(asked) for item in model.items() if item[0][0] == number]
    wanted = [(place, row(species, *item)) for place, item in of_key]
    assert sorted(answers) == sorted(wanted)
    if TABLES[species].subkeys:
        found = view.multi_get(table(species, asked, hashes))
        answers = list(zip(found.key_number.tolist(), rows_in(found.rows), strict=True))
        assert sorted(answers) == sorted(
            (i, row(species, entry, model[entry])) for i, entry in enumerate(asked) if entry in model
        )


class Compared:
    """Counts the rows whose keys are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        for module in (row_classes, lookup, scan):
            monkeypatch.setattr(module, "columns_equal", self._counting(module.columns_equal))
        monkeypatch.setattr("floodplain.store.rows.row_classes.equality_classes", self._counting(row_classes.equality_classes))
        monkeypatch.setattr("floodplain.store.read.collisions.equality_classes", self._counting(row_classes.equality_classes))

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(columns: Sequence[pa.Array], *others: Any) -> Any:
            self.rows += len(columns[0])
            return function(columns, *others)

        return counted


def work(species: str, count: int) -> None:
    """All that can be done with so many keys of one hash."""
    entries = [(number, 1) for number in range(count)]
    store, put = forge.with_table(TABLES[species]), table(species, entries, 1, range(count))
    forge.write(store, "t", ("put", put), ("put", put))
    forge.write(store, "t", ("put", put))
    view = store.snapshot().table("t")
    assert len(view.to_arrow()) == count
    list(store.diff("t", 1, 2))
    for subs in (False, True):
        assert len(view.multi_get(table(species, entries, 1, subs=subs)).rows) == count
    list(store.compact(full=True))
    assert len(store.snapshot().table("t").multi_get(table(species, entries, 1)).rows) == count
    keys = table(species, entries * 2, 1, subs=False)
    assert len(group(keys, {name: name for name in keys.column_names if name != "_hash"}).space) == count


@pytest.mark.parametrize("species", TABLES)
def test_four_times_the_keys_of_a_hash_are_four_times_the_work(species: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for keys in (200, 800):
        with monkeypatch.context() as patched:
            compared = Compared(patched)
            work(species, keys)
            counts.append(compared.rows)
    assert 200 < counts[0] < 200 * 60
    assert counts[1] <= 4.5 * counts[0]


def test_entries_of_one_key_and_one_hash_are_told_apart_by_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sub-keys that share a hash, which only their own columns tell apart."""
    counts = []
    for entries in (200, 800):
        with monkeypatch.context() as patched:
            patched.setattr("floodplain.store.rows.delta.hash_columns", lambda columns: constant(len(columns[0])))
            patched.setattr("floodplain.store.read.snapshot.hash_columns", lambda columns: constant(len(columns[0])))
            compared = Compared(patched)
            store, rows = forge.with_table(TABLES["map"]), table("map", [(0, sub) for sub in range(entries)], 1, range(entries))
            forge.write(store, "t", ("put", rows), ("put", rows))
            forge.write(store, "t", ("put", rows))
            found = store.snapshot().table("t").multi_get(rows.drop_columns(["v"]))
            assert found.key_number.tolist() == found.rows.column("v").to_pylist() == list(range(entries))
            counts.append(compared.rows)
    assert counts[1] <= 4.5 * counts[0]


def constant(rows: int) -> Any:
    return np.full(rows, HASHES[1], np.uint64)
