"""``get`` gives what a multi-get of that one key gives, and where the newest row settles a key it does so without one.

All kinds of tables, with merges, ends, deletes and evolution: ``tests/store/machine.py`` asks for each key with ``get``, too.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import Corrupt, SchemaMismatch
from floodplain.keys import hash_columns, hash_one, key_group, key_group_of
from floodplain.store.read import lookup
from floodplain.store.rows.definition import Column, map_table, value_table
from floodplain.store.store import Store
from tests.store import forge
from tests.store.world import colliding

TEXT, LONG, SHORT = pa.string(), pa.int64(), pa.int16()
TABLE = value_table("t", {"k": TEXT, "n": LONG}, {"v": Column(LONG, default=5), "s": pa.string(), "p": pa.list_(LONG)})
KEYS = st.tuples(st.sampled_from(["", "a", "ü" * 40, "b\0"]), st.sampled_from([0, -1, 1 << 62]))
VALUES = st.fixed_dictionaries(
    {
        "v": st.integers(-9, 9) | st.none(),
        "s": st.text(max_size=3) | st.none(),
        "p": st.lists(st.integers(0, 3), max_size=2) | st.none(),
    }
)
EPOCHS = st.lists(st.tuples(st.dictionaries(KEYS, VALUES, max_size=6), st.sets(KEYS, max_size=2), st.booleans()), max_size=7)


def rows_of(rows: dict[tuple[str, int], dict[str, Any]]) -> pa.Table:
    schema = pa.schema([("k", TEXT), ("n", LONG), *((field.name, field.arrow) for field in TABLE.values)])
    return pa.Table.from_pylist([{"k": k, "n": n, **values} for (k, n), values in rows.items()], schema)


def keys_of(keys: set[tuple[str, int]]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "n": n} for k, n in keys], pa.schema([("k", TEXT), ("n", LONG)]))


@settings(max_examples=60, deadline=None)
@given(EPOCHS)
def test_a_get_is_the_newest_value(tmp_path_factory: pytest.TempPathFactory, epochs: list[Any]) -> None:
    expected: dict[tuple[str, int], dict[str, Any]] = {}
    store = Store.open(tmp_path_factory.mktemp("state"), create=True, settings=forge.SETTINGS)
    with store.writer("me") as writer:
        writer.define(TABLE)
        for puts, deletes, compacts in epochs:
            epoch = writer.epoch()
            epoch.put("t", rows_of(puts))
            epoch.delete("t", keys_of(deletes))
            epoch.commit()
            expected = {key: values for key, values in {**expected, **puts}.items() if key not in deletes}
            for _ in store.compact(full=True) if compacts else ():
                pass
        view = store.snapshot().table("t")
        for k, n in {("nobody", 0), ("a", 7), *expected, *(key for puts, _, _ in epochs for key in puts)}:
            assert view.get(k, n) == expected.get((k, n))
    store.close()


@pytest.fixture
def store(tmp_path):
    store = Store.open(tmp_path / "state", create=True, settings=forge.SETTINGS)
    with store.writer("me") as writer:
        writer.define(TABLE)
        writer.define(map_table("m", {"k": TEXT}, {"of": TEXT}, {"v": LONG}))
        for number in range(3):
            epoch = writer.epoch()
            epoch.put("t", rows_of({(f"{key}", key): {"v": number, "s": None, "p": [key]} for key in range(number, 40)}))
            epoch.put("m", pa.table({"k": ["a"], "of": ["b"], "v": [number]}))
            epoch.commit()
    yield store
    store.close()


def test_a_get_takes_no_pass_of_the_multi_get(store, monkeypatch):
    monkeypatch.setattr(lookup, "multi_get", None)
    view = store.snapshot().table("t")
    assert [view.get(f"{key}", key) for key in (0, 1, 39, 40)] == [
        {"v": 0, "s": None, "p": [0]},
        {"v": 1, "s": None, "p": [1]},
        {"v": 2, "s": None, "p": [39]},
        None,
    ]


def test_an_entry_of_a_map_is_got_by_its_sub_key(store):
    assert store.snapshot().table("m").get("a", "b") == {"v": 2}
    assert store.snapshot().table("m").get("a", "c") is None


@pytest.mark.parametrize("key", [(), ("a",), ("a", 1, 2), ("a", "b"), (b"a\xff", 1), ("\ud800", 1), ("a", 1 << 63)])
def test_what_is_no_key_is_refused(store, key):
    with pytest.raises(SchemaMismatch, match="table t"):
        store.snapshot().table("t").get(*key)


@pytest.mark.parametrize("key", [(None, 1), ("a", None), ("7", np.int64(7))])
def test_a_key_that_the_fast_path_does_not_know_is_looked_up(store, key):
    view = store.snapshot().table("t")
    asked = pa.table({"k": pa.array(key[:1], TEXT), "n": pa.array(key[1:], LONG)})
    rows = view.multi_get(asked, columns=["v", "s", "p"]).rows.to_pylist()
    assert view.get(*key) == (rows[0] if rows else None) and bool(rows) == (key[0] == "7")


def test_keys_that_share_a_hash_are_told_apart(tmp_path):
    keys = [(0, 0), colliding(0, 0, 1), colliding(0, 0, 2)]
    store = Store.open(tmp_path / "state", create=True, settings=forge.SETTINGS)
    with store.writer("me") as writer:
        writer.define(value_table("t", {"a": LONG, "b": LONG}, {"v": LONG}))
        for number, (a, b) in enumerate(keys[:2]):
            writer.put("t", pa.table({"a": [a], "b": [b], "v": [number]}))
    view = store.snapshot().table("t")
    assert [view.get(*key) for key in keys] == [{"v": 0}, {"v": 1}, None]
    store.close()


def test_a_file_that_was_cut_is_noticed_before_it_is_touched(store, tmp_path):
    view = store.snapshot().table("t")
    assert view.get("5", 5) is not None
    for run in (tmp_path / "state" / "runs").rglob("*"):
        if run.is_file():
            run.write_bytes(run.read_bytes()[:-8])
    with pytest.raises(Corrupt):
        view.get("5", 5)


INTS = {8: pa.int8(), 16: SHORT, 32: pa.int32(), 64: LONG}
TYPED = st.one_of(
    st.tuples(st.text(), st.just(TEXT)),
    *(st.tuples(st.integers(-(1 << bits - 1), (1 << bits - 1) - 1), st.just(type_)) for bits, type_ in INTS.items()),
)


@given(st.lists(TYPED, min_size=1, max_size=3), st.sampled_from([1, 2, 1024, 65_536]))
def test_the_hash_of_one_key_is_that_of_columns(key: list[tuple[Any, pa.DataType]], key_groups: int) -> None:
    hashes = hash_columns([pa.array([value], type_) for value, type_ in key])
    one = hash_one([value for value, _ in key], [type_ for _, type_ in key])
    assert one == int(hashes[0])
    assert key_group_of(one, key_groups) == key_group(hashes, key_groups)[0]
