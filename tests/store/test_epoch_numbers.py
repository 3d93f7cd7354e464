"""A state that was imported counts its epochs from where the other system was."""

import pyarrow as pa
import pytest

import floodplain as fp

TABLE = fp.value_table("t", {"k": pa.string()}, {"n": pa.int64()})


def rows(n: int) -> pa.Table:
    return pa.table({"k": ["a"], "n": [n]})


def test_epochs_are_counted_from_the_first_one_on(tmp_path):
    store = fp.open(tmp_path, create=True, settings=fp.StoreSettings(key_groups=4, sync=False))
    with store.writer("import") as writer:
        writer.define(TABLE)
        epoch = writer.epoch(now_ms=5, number=42)
        epoch.put("t", rows(1))
        assert epoch.number == 42
        epoch.commit(published=True)
        assert (store.head.epoch, store.head.published) == (42, 42)
        writer.put("t", rows(2))
        assert writer.rollback(42).epoch == 44
    again = fp.open(tmp_path)
    assert again.verify().good
    read = {epoch: again.at(epoch).table("t").to_arrow()["n"].to_pylist() for epoch in (42, 43, 44)}
    assert read == {42: [1], 43: [2], 44: [1]}
    for _ in again.compact(full=True):
        pass
    assert again.snapshot().table("t").to_arrow()["n"].to_pylist() == [1]


def test_a_state_with_epochs_does_not_begin_again(tmp_path):
    store = fp.open(tmp_path, create=True, settings=fp.StoreSettings(key_groups=4, sync=False))
    with store.writer("import") as writer:
        writer.define(TABLE)
        writer.put("t", rows(1))
        with pytest.raises(fp.Conflict, match="epoch 2"):
            writer.epoch(number=42).commit()
