"""Converts types and schemas between Spark DDL and Arrow."""

from collections.abc import Mapping

import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.expressions.identifiers import bare, quoted
from floodplain.expressions.type_ddl import ATOMIC, VARIANT, parse_type


def parse_schema(text: str) -> pa.Schema:
    """Parses ``"user string, views long NOT NULL"`` to an Arrow schema."""
    type_ = parse_type(text)
    if not pa.types.is_struct(type_) or type_ == VARIANT:
        raise SchemaMismatch(f"{text!r} has no fields: write them as in 'user string, views long'")
    return pa.schema(list(type_))


def as_arrow(type_: str | pa.DataType) -> pa.DataType:
    """An Arrow type, or the one that a DDL text denotes."""
    return type_ if isinstance(type_, pa.DataType) else parse_type(type_)


def as_fields(schema: str | pa.Schema | Mapping[str, str | pa.DataType]) -> dict[str, pa.DataType]:
    """Names and types of a schema in any of its forms."""
    if isinstance(schema, Mapping):
        return {name: as_arrow(type_) for name, type_ in schema.items()}
    fields = list(schema if isinstance(schema, pa.Schema) else parse_schema(schema))
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"a field occurs twice among {', '.join(names)}")
    return {field.name: field.type for field in fields}


def to_ddl(type_: pa.DataType) -> str:
    """The DDL text that ``parse_type`` reads as this type, without the nullability of array elements and map values."""
    for name, atomic in ATOMIC.items():
        if type_ == atomic and (name == "variant" or not pa.types.is_struct(type_)):
            return name
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return "timestamp"
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_map(type_):
        return f"map<{to_ddl(type_.key_type)},{to_ddl(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{to_ddl(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(_field_ddl(field, ': ') for field in type_)}>"
    raise SchemaMismatch(f"Spark has no type for Arrow's {type_}")


def schema_to_ddl(schema: pa.Schema) -> str:
    return ", ".join(_field_ddl(field, " ") for field in schema)


def _field_ddl(field: pa.Field, separator: str) -> str:
    name = field.name if field.name.isascii() and bare(field.name) else quoted(field.name)
    return f"{name}{separator}{to_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}"
