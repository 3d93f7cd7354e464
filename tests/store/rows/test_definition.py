"""Definitions that are refused: each says which table and column it is about, and what to do. Found in a log, they are damage."""

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from floodplain.errors import BadInput, Corrupt
from floodplain.store.rows.definition import (
    MOST_DEPTH,
    MOST_TTL_MS,
    Column,
    list_table,
    map_table,
    recorded,
    timer_table,
    value_table,
)
from floodplain.versions.records.schema import TableSchema, type_to_bytes

K, V = {"k": pa.int64()}, {"v": pa.int64()}
TABLES: dict[str, Callable[..., TableSchema]] = {
    "value": lambda keys=K, values=V, **more: value_table("t", keys, values, **more),
    "list": lambda keys=K, values=V, **more: list_table("t", keys, values, **more),
    "map": lambda keys=K, values=V, subkeys=None, **more: map_table("t", keys, subkeys or {"s": pa.int64()}, values, **more),
    "timer": lambda keys=K, values=V: timer_table("t", keys, values),
}


def nested(levels: int) -> pa.DataType:
    return pa.int64() if not levels else pa.list_(nested(levels - 1))


OF_ANY: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"keys": {}}, "table t needs at least one key column"),
    "own name": ({"values": {"_v": pa.int64()}}, "table t: column _v starts with _, which is kept for the store's own"),
    "name": ({"values": {"V v": pa.int64()}}, "column name 'V v' is not allowed: use 1 to 64 of the characters a-z, 0-9 and _"),
    "twice": ({"values": {"k": pa.int64()}}, "table t: a column name stands twice among "),
    "type": (
        {"values": {"v": pa.dictionary(pa.int8(), pa.string())}},
        "table t: column v: dictionary<values=string, indices=int8, ordered=0> cannot be stored: cast it to a plain type",
    ),
    "depth": ({"values": {"v": nested(MOST_DEPTH + 1)}}, f"table t: column v: is nested more than {MOST_DEPTH} deep"),
    "default": (
        {"values": {"v": Column(pa.int8(), default=300)}},
        "table t: default 300 of column v is not a int8: ",
    ),
    "merge": (
        {"values": {"v": Column(pa.int64(), merge="none")}},
        "table t: column v: no merge is called 'none': register it first",
    ),
    "sum": ({"values": {"v": Column(pa.string(), merge="sum")}}, "table t: column v: sum needs a number, not string"),
    "sum of a type without sums": (
        {"values": {"v": Column(pa.decimal32(5, 2), merge="sum")}},
        "table t: column v: sum needs a type with sums, not decimal32(5, 2)",
    ),
    "append": ({"values": {"v": Column(pa.int64(), merge="append")}}, "table t: column v: append needs a list, not int64"),
    **{
        merge: (
            {"values": {"v": Column(pa.list_(pa.int64()), merge=merge)}},
            f"table t: column v: {merge} needs a type with an order, not {pa.list_(pa.int64())}",
        )
        for merge in ("min", "max")
    },
    "time to live of a column": (
        {"values": {"v": Column(pa.int64(), ttl_ms=-1)}},
        f"table t: column v has a time to live of -1 ms; use 0 (for ever) to {MOST_TTL_MS}",
    ),
}
OF_ONE: dict[str, tuple[Callable[[], TableSchema], str]] = {
    "table name": (lambda: value_table("T", K, V), "table name 'T' is not allowed: use 1 to 64 of the characters a-z, 0-9 and _"),
    "no sub-key": (lambda: map_table("t", K, {}, V), "table t needs at least one sub-key column"),
    "time to live": (
        lambda: value_table("t", K, V, ttl_ms=MOST_TTL_MS + 1),
        f"table t: the table has a time to live of {MOST_TTL_MS + 1} ms; use 0 (for ever) to {MOST_TTL_MS}",
    ),
    "clock": (
        lambda: value_table("t", K, V, ttl_clock="a b"),
        "watermark name 'a b' is not allowed: use 1 to 64 of the characters a-z, 0-9 and _",
    ),
    "type of a sub-key": (lambda: map_table("t", K, {"s": pa.map_(pa.int64(), pa.int64())}, V), "s"),
}


@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize("name", OF_ANY)
def test_what_no_table_may_have(name: str, shape: str) -> None:
    given, told = OF_ANY[name]
    with pytest.raises(BadInput, match="^" + re.escape(told)):
        TABLES[shape](**given)


@pytest.mark.parametrize("name", OF_ONE)
def test_what_some_may_not_have(name: str) -> None:
    define, told = OF_ONE[name]
    with pytest.raises(BadInput, match=re.escape(told)):
        define()


@pytest.mark.parametrize("ttl_ms", [0, 1, MOST_TTL_MS])
@pytest.mark.parametrize("shape", ["value", "list", "map"])
def test_every_time_to_live_up_to_the_most(shape: str, ttl_ms: int) -> None:
    schema = TABLES[shape](values={"v": Column(pa.int64(), ttl_ms=ttl_ms)}, ttl_ms=ttl_ms)
    assert (recorded(schema).ttl_ms, schema.values[0].ttl_ms) == (ttl_ms, ttl_ms)


def field(schema: TableSchema, kind: str, **changes: Any) -> TableSchema:
    first, *others = getattr(schema, kind)
    return replace(schema, **{kind: (replace(first, **changes), *others)})


RECORDED: dict[str, tuple[Callable[[TableSchema], TableSchema], str]] = {
    "table name": (lambda s: replace(s, table="T"), "table name 'T' is not allowed"),
    "column name": (lambda s: field(s, "values", name="_v"), "table t: column _v starts with _"),
    "no key": (lambda s: replace(s, keys=()), "table t needs at least one key column"),
    "sub-keys": (
        lambda s: replace(s, subkeys=(replace(s.keys[0], id=7, name="z", type=type_to_bytes(pa.int8())),), next_field=8),
        "table t of shape .* has sub-keys of types",
    ),
    "ids": (lambda s: field(s, "values", id=1), r"table t: field ids \[1, .*1\] are not different numbers below"),
    "next id": (lambda s: replace(s, next_field=2), "table t: field ids .* are not different numbers below 2"),
    "time to live": (lambda s: replace(s, ttl_ms=-1), "table t: the table has a time to live of -1 ms"),
    "of a column": (lambda s: field(s, "values", ttl_ms=-1), "table t: column v has a time to live of -1 ms"),
    "clock": (lambda s: replace(s, ttl_clock=""), "watermark name '' is not allowed"),
    "type": (lambda s: field(s, "values", type=type_to_bytes(nested(MOST_DEPTH + 1))), "table t: column v: is nested more than"),
    "merge": (
        lambda s: field(s, "values", type=type_to_bytes(pa.string()), merge="sum"),
        "table t: column v: sum needs a number, not string",
    ),
    "default": (
        lambda s: field(s, "values", default=value_table("t", K, {"v": Column(pa.string(), default="x")}).values[0].default),
        "table t: column v: a default of another type",
    ),
}


@pytest.mark.parametrize("shape", ["value", "list", "timer"])
@pytest.mark.parametrize("name", RECORDED)
def test_what_no_definition_can_have_led_to_is_damage(name: str, shape: str) -> None:
    change, told = RECORDED[name]
    damaged = change(TABLES[shape]())
    with pytest.raises(Corrupt) as caught:
        recorded(damaged)
    assert caught.value.file == f"schema 1 of table {damaged.table!r}"
    assert caught.value.expected == "a definition"
    assert re.match(told, caught.value.found)
