from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.errors import SchemaMismatch
from floodplain.expressions.type_ddl import parse_type
from floodplain.state.types import as_fields, parse_schema, schema_to_ddl, to_ddl

INSTANT = pa.timestamp("us", "UTC")


def array(type_: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", type_))


def map_(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


KNOWN = [
    ("boolean", pa.bool_()),
    ("byte", pa.int8()),
    ("tinyint", pa.int8()),
    ("short", pa.int16()),
    ("smallint", pa.int16()),
    ("int", pa.int32()),
    ("INTEGER", pa.int32()),
    ("long", pa.int64()),
    ("bigint", pa.int64()),
    ("float", pa.float32()),
    ("real", pa.float32()),
    ("double", pa.float64()),
    ("string", pa.string()),
    ("string collate utf8_binary", pa.string()),
    ("binary", pa.binary()),
    ("date", pa.date32()),
    ("timestamp", INSTANT),
    ("timestamp_ltz", INSTANT),
    ("timestamp_ntz", pa.timestamp("us")),
    ("decimal", pa.decimal128(10, 0)),
    ("dec(5)", pa.decimal128(5, 0)),
    ("numeric(38, 38)", pa.decimal128(38, 38)),
    ("decimal(12,2)", pa.decimal128(12, 2)),
    ("void", pa.null()),
    ("interval day to second", pa.duration("us")),
    ("interval hour", pa.duration("us")),
    ("time", pa.time64("ns")),
    ("time(3)", pa.time64("ns")),
    ("array<long>", array(pa.int64())),
    ("map<string,array<double>>", map_(pa.string(), array(pa.float64()))),
    ("struct<>", pa.struct([])),
    ("struct<a: int, b string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    (
        "array<struct<a: int, b: map<string, double>>>",
        array(pa.struct([("a", pa.int32()), ("b", map_(pa.string(), pa.float64()))])),
    ),
    ("user string, views long", pa.struct([("user", pa.string()), ("views", pa.int64())])),
    ("user: string, views: long", pa.struct([("user", pa.string()), ("views", pa.int64())])),
    ("date date", pa.struct([("date", pa.date32())])),
    ("a int NOT NULL COMMENT 'it\\'s', b string", pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.string())])),
    ("`odd, name``` int", pa.struct([("odd, name`", pa.int32())])),
    ("1st int", pa.struct([("1st", pa.int32())])),
]
"""Spark reads all of these too: see ``test_spark_agrees``."""


@pytest.mark.parametrize(("text", "type_"), KNOWN, ids=[text for text, _ in KNOWN])
def test_known(text, type_):
    assert parse_type(text).equals(type_, check_metadata=True)


def test_a_variant_is_marked_as_spark_marks_it():
    variant = parse_type("variant")
    assert variant.field("metadata").metadata == {b"variant": b"true"}
    assert to_ddl(variant) == "variant"


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        ("strng", "did you mean string", 1),
        ("array<strng>", "did you mean string", 7),
        ("array<int", "expected '>'", 10),
        ("array", "expected '<'", 6),
        ("map<string>", "expected ','", 11),
        ("decimal(39,2)", "precision from 1 to 38", 9),
        ("decimal(5,6)", "scale from 0 to 5", 11),
        ("decimal(5,-1)", "unexpected '-'", 11),
        ("user string,", "name of a field", 13),
        ("user string views long", "expected ','", 13),
        ("a int, b struct<c: nonsense>", "unknown type 'nonsense'", 20),
        ("a int, a long", "'a' stands twice", 8),
        ("varchar(5)", "use string", 1),
        ("string collate unicode", "collated", 16),
        ("interval", "days to seconds", 9),
        ("interval year to month", "days to seconds", 10),
        ("a nonsense", "unknown type 'nonsense'", 3),
        ("a int not", "expected NULL", 10),
        ("a void not null", "always null", 3),
        ("map<void, int>", "always null", 5),
        ("long)", "unexpected ')'", 5),
        ("", "expected a type", 1),
        ("a int; b int", "unexpected ';'", 6),
    ],
)
def test_errors_point_at_the_position(text, problem, position):
    with pytest.raises(SchemaMismatch) as caught:
        parse_type(text)
    message = str(caught.value)
    assert problem in message
    assert f"at position {position}:" in message
    caret = message.splitlines()[-1]
    assert caret.index("^") == position + 1


@pytest.mark.parametrize("text", [None, 5, pa.int64()])
def test_what_is_no_text(text):
    with pytest.raises(SchemaMismatch, match="is not a type"):
        parse_type(text)


def test_very_deep_nesting_is_an_error_and_no_crash():
    with pytest.raises(SchemaMismatch, match="deep"):
        parse_type("array<" * 5000 + "int" + ">" * 5000)


def types() -> st.SearchStrategy[pa.DataType]:
    atoms = [type_ for text, type_ in KNOWN if not pa.types.is_nested(type_)]
    names = st.text("abc1_` ,:<é", min_size=1, max_size=5)

    def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        fields = st.lists(st.tuples(names, inner, st.booleans()), max_size=3, unique_by=lambda field: field[0])
        return st.one_of(
            inner.map(array),
            st.tuples(inner.filter(lambda type_: type_ != pa.null()), inner).map(lambda pair: map_(*pair)),
            fields.map(
                lambda found: pa.struct([pa.field(name, type_, bare or type_ == pa.null()) for name, type_, bare in found])
            ),
        )

    return st.recursive(st.sampled_from(atoms), nested, max_leaves=6)


@given(types())
def test_there_and_back(type_):
    assert parse_type(to_ddl(type_)).equals(type_, check_metadata=True)


@pytest.mark.parametrize(
    "type_", [pa.uint8(), pa.large_string(), pa.timestamp("ns"), pa.decimal256(5), pa.dictionary(pa.int8(), pa.string())]
)
def test_what_spark_does_not_have_has_no_text(type_):
    with pytest.raises(SchemaMismatch, match="no type"):
        to_ddl(type_)


def test_schemas():
    schema = parse_schema("user string NOT NULL, `at time` timestamp")
    assert schema == pa.schema([pa.field("user", pa.string(), False), pa.field("at time", INSTANT)])
    assert parse_schema(schema_to_ddl(schema)) == schema
    with pytest.raises(SchemaMismatch, match="has no fields"):
        parse_schema("long")


def test_fields_come_in_three_forms():
    wanted = {"user": pa.string(), "n": pa.int64()}
    assert (
        as_fields("user string, n long")
        == as_fields(pa.schema(wanted))
        == as_fields({"user": "string", "n": pa.int64()})
        == wanted
    )


def test_values_of_the_types_fit():
    row = {"d": Decimal("1.50"), "on": date(2024, 1, 1), "at": datetime(2024, 1, 1)}  # noqa: DTZ001
    type_ = parse_type("d decimal(12,2), on date, at timestamp_ntz")
    assert pa.scalar(row, type_).as_py() == row
