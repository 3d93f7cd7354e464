"""Edits with valid checksums that Floodplain would never write, and invalid names."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from floodplain.errors import BadInput, BadName, Corrupt, FloodplainError
from floodplain.store.rows.definition import MOST_TTL_MS, Column, list_table, map_table, timer_table, value_table
from floodplain.store.store import Store
from floodplain.versions.records.edit import (
    AdvanceHorizon,
    AdvancePublished,
    CommitEpoch,
    DropEpochs,
    PutSchema,
    ReplaceRuns,
    SetTag,
    TakeLease,
    Update,
)
from floodplain.versions.records.schema import Field, TableSchema, type_to_bytes, value_to_bytes
from tests.store import forge

TABLE = value_table("t", {"user": pa.string()}, {"n": Column(pa.int64(), merge="sum"), "s": pa.string()}, ttl_ms=10**6)
KEY, (N, S) = TABLE.keys[0], TABLE.values
ROWS = {"user": ["a", "b"], "n": [1, 2], "s": ["x", None]}


@pytest.fixture
def store() -> Store:
    store = forge.with_table(TABLE)
    forge.write(store, "t", ("put", ROWS))
    return store


def use(store: Store) -> None:
    """Read and write all there is, as another process would."""
    store = forge.reopen(store.history.blobs)
    table = store.snapshot().table("t")
    table.to_arrow()
    table.multi_get(pa.table({"user": ["a"]}))
    list(store.compact(full=True))
    forge.write(store, "t", ("merge", {"user": ["a"], "n": [1]}))


def changed(**changes: Any) -> TableSchema:
    return msgspec.structs.replace(TABLE, id=2, **changes)


def with_n(**changes: Any) -> TableSchema:
    return changed(values=(msgspec.structs.replace(N, **changes), S))


def with_s(**changes: Any) -> TableSchema:
    return changed(values=(N, msgspec.structs.replace(S, **changes)))


def default_outside() -> bytes:
    data = bytearray(value_to_bytes(pa.scalar("x" * 15)))
    struct.pack_into("<2i", data, bytes(data).index(struct.pack("<2i", 0, 15)), 0, 2**31 - 1)
    return bytes(data)


def deep(levels: int) -> pa.DataType:
    type_ = pa.int64()
    for _ in range(levels):
        type_ = pa.list_(type_)
    return type_


NOISE = {
    "empty": b"",
    "ones": b"\xff" * 50,
    "bytes": bytes(range(256)),
    "no field": pa.schema([]).serialize().to_pybytes(),
    "too deep": type_to_bytes(deep(300)),
}
SCHEMAS: dict[str, TableSchema] = {
    **{f"type {name}": with_n(type=data) for name, data in NOISE.items()},
    **{f"key type {name}": changed(keys=(msgspec.structs.replace(KEY, type=data),)) for name, data in NOISE.items()},
    **{f"default {name}": with_n(default=data) for name, data in NOISE.items() if data},
    "default of another type": with_n(default=value_to_bytes(pa.scalar("x"))),
    "default outside its bytes": with_s(default=default_outside()),
    "narrower type": with_n(type=type_to_bytes(pa.int8())),
    "another type": with_n(type=type_to_bytes(pa.string()), merge=""),
    "another key type": changed(keys=(msgspec.structs.replace(KEY, type=type_to_bytes(pa.int64())),)),
    "another key": changed(keys=(msgspec.structs.replace(KEY, id=9),), next_field=10),
    "key that Spark cannot hash": changed(
        keys=(msgspec.structs.replace(KEY, type=type_to_bytes(pa.map_(pa.int8(), pa.int8()))),)
    ),
    "no keys": changed(keys=()),
    "no column twice": changed(values=(N, msgspec.structs.replace(S, name="n"))),
    "no id twice": with_n(id=1),
    "negative id": with_n(id=-1),
    "id beyond": with_n(id=2**63),
    "system column": with_n(name="_hash"),
    "path as a name": with_n(name="../../x"),
    "no name": with_n(name=""),
    "append to a number": with_n(merge="append"),
    "sum of strings": with_s(merge="sum"),
    "shape": changed(shape="time", subkeys=(Field(9, "at", type_to_bytes(pa.int64())),), next_field=10),
    "sub-keys of values": changed(subkeys=(Field(9, "at", type_to_bytes(pa.int64())),), next_field=10),
    "watermark": changed(ttl_clock="../x"),
    "lost time to live": changed(ttl_ms=0),
    **{f"time to live {ttl}": changed(ttl_ms=ttl) for ttl in (-1, 2**63, 2**64 - 1)},
    **{f"column's time to live {ttl}": with_n(ttl_ms=ttl) for ttl in (-1, 2**63, 2**64 - 1)},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_that_no_definition_leads_to(store: Store, name: str) -> None:
    forge.append(store, PutSchema(SCHEMAS[name]))
    with pytest.raises(Corrupt):
        use(store)


def test_a_merge_that_nobody_registered_is_never_imported(store: Store) -> None:
    forge.append(store, PutSchema(with_n(merge="os:system")))
    forge.reopen(store.history.blobs).snapshot().table("t").to_arrow()
    with pytest.raises(FloodplainError, match="os:system"):
        store = forge.reopen(store.history.blobs)
        forge.write(store, "t", ("merge", {"user": ["a"], "n": [1]}))
        store.snapshot().table("t").to_arrow()


UPDATES: dict[str, Update] = {
    "schema id": PutSchema(msgspec.structs.replace(TABLE, id=9)),
    "epoch": CommitEpoch(2**63, ()),
    "epoch again": CommitEpoch(1, ()),
    "horizon beyond": AdvanceHorizon(2**63),
    "horizon back": AdvanceHorizon(-1),
    "published beyond": AdvancePublished(2**63),
    "newest epoch dropped": DropEpochs((1,)),
    "tag of nothing": SetTag("x", 99),
    "lease token": TakeLease(2**63, "x", 0),
    "lease token back": TakeLease(-1, "x", 0),
    "replaced nothing": ReplaceRuns("t", ((0, 16),), ("runs/none@0",), ()),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_that_do_not_fit(store: Store, name: str) -> None:
    forge.append(store, UPDATES[name])
    with pytest.raises(Corrupt):
        use(store)


@pytest.mark.parametrize("time", [-(2**63), 2**63 - 1, 2**63, 2**64 - 1])
def test_watermarks_beyond_all_times(store: Store, time: int) -> None:
    """Reading gets by; writing on top of it is refused with a message."""
    append = CommitEpoch(2, (), watermarks={"event_time": time})
    forge.append(store, append)
    use(store)
    with pytest.raises(FloodplainError):
        store = forge.reopen(store.history.blobs)
        forge.append(store, CommitEpoch(4, (), watermarks={"processing_time": time}))
        store = forge.reopen(store.history.blobs)
        store.snapshot().table("t").to_arrow()
        forge.write(store, "t", ("put", ROWS))


EVIL_NAMES = ["", "../x", "/", "a/b", "A", "é", "a b", "a" * 65, "x\0y", "a\n", ".", "..", "%2e", "💣", "a\u200b", None, 7]


@pytest.mark.parametrize("name", EVIL_NAMES)
def test_names_that_are_no_names(store: Store, name: Any) -> None:
    key = {"k": pa.int64()}
    tries: list[Callable[[], object]] = [
        lambda: value_table(name, key, {}),
        lambda: value_table("x", {name: pa.int64()}, {}),
        lambda: value_table("x", key, {name: pa.int64()}),
        lambda: value_table("x", key, {}, ttl_clock=name),
        lambda: list_table("x", key, {}, position=name),
        lambda: map_table("x", key, {name: pa.int64()}, {}),
        lambda: timer_table("x", key, time=name),
        lambda: store.tag(name),
        lambda: store.drop_tag(name),
        lambda: store.writer(name),
    ]
    if name is not None:
        tries.append(lambda: store.at(tag=name))
    before = sorted(info.name for info in store.history.blobs.list(""))
    for attempt in tries:
        with pytest.raises(BadName):
            attempt()
    with store.writer("test") as writer:
        with pytest.raises(BadName):
            writer.epoch().task(name, "0")
        with pytest.raises(BadName):
            writer.epoch().commit(watermarks={name: 1})
    after = [info.name for info in store.history.blobs.list("") if not info.name.startswith("log/")]
    assert after == [found for found in before if not found.startswith("log/")]


@pytest.mark.parametrize("part", ["../../x", "a/../b", "x\0", "é", "a" * 300, "/"])
def test_a_part_of_a_task_becomes_no_path(store: Store, part: str) -> None:
    with store.writer("test") as writer:
        epoch = writer.epoch()
        task = epoch.task("op", part)
        task.write("t", pa.table({"user": ["x" * 100_000], "n": [1]}))
        with pytest.raises(FloodplainError):
            task.finish()


@pytest.mark.parametrize("table", ["none", "../t", "", "T"])
def test_tables_that_are_not_there(store: Store, table: str) -> None:
    with pytest.raises(BadInput, match="there is no table"):
        store.snapshot().table(table)
    with store.writer("test") as writer, pytest.raises(BadInput, match="there is no table"):
        writer.put(table, pa.table(ROWS))


def test_the_longest_time_to_live_works() -> None:
    store = forge.with_table(
        value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), ttl_ms=MOST_TTL_MS)}, ttl_ms=MOST_TTL_MS)
    )
    forge.write(store, "t", ("put", {"k": [1], "v": [2]}), now_ms=1 << 61)
    assert forge.rows(store, "t") == [{"k": 1, "v": 2}]
    with pytest.raises(BadInput):
        value_table("t", {"k": pa.int64()}, {}, ttl_ms=MOST_TTL_MS + 1)


@pytest.mark.parametrize("now_ms", [2**63, -(2**63), 2**70])
def test_times_beyond_all_times(store: Store, now_ms: int) -> None:
    with store.writer("test") as writer:
        if now_ms > 0:
            with pytest.raises(BadInput):
                writer.epoch(now_ms=now_ms)
        with pytest.raises(BadInput):
            writer.epoch().commit(watermarks={"event_time": now_ms})
