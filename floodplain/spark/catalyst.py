"""Spark's expressions as those of a native scan, as far as they can be evaluated exactly."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    _parse_datatype_json_string,
)

from floodplain.errors import SchemaMismatch, short
from floodplain.keys import check_key_type
from floodplain.sources.scan import (
    And,
    Arithmetic,
    Case,
    Column,
    Compare,
    Const,
    Expression,
    Hash,
    In,
    IsNan,
    IsNull,
    MakeStruct,
    Member,
    Negate,
    Not,
    Or,
    Widen,
    encoded_type,
)

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_FLOATS = (FloatType, DoubleType)
_ORDERED = (*_INTEGERS, *_FLOATS, StringType, BinaryType, BooleanType, DateType, TimestampType, TimestampNTZType, DecimalType)
_MOST_DIGITS = 38
_XXHASH_SEED = 42


class OnlySpark(Exception):
    """Why something is left to Spark."""


def parsed_type(holder: Any) -> DataType:
    """The type of a column or expression, whose parts can be null. Raises ``OnlySpark`` for one that is not read natively."""
    type_ = _parse_datatype_json_string(holder.dataType().json())
    for inner in _types_within(type_):
        if type(inner) not in (*_ORDERED, ArrayType, MapType, StructType):
            raise OnlySpark(f"the type {inner.simpleString()} is read by Spark only")
        if isinstance(inner, StringType) and inner != StringType():
            raise OnlySpark(f"strings of the type {inner.simpleString()} are read and compared by Spark only")
    nullable: DataType = type_._as_nullable()
    return nullable


def _types_within(type_: DataType) -> Iterator[DataType]:
    yield type_
    match type_:
        case ArrayType(elementType=element):
            yield from _types_within(element)
        case MapType(keyType=key, valueType=value):
            yield from _types_within(key)
            yield from _types_within(value)
        case StructType(fields=fields):
            for field in fields:
                yield from _types_within(field.dataType)


def arrow_type(type_: DataType) -> pa.DataType:
    """As Spark sends it to Python."""
    try:
        return to_arrow_schema(StructType([StructField("", type_)]), timezone="UTC").field(0).type
    except PySparkException as error:
        raise OnlySpark(f"the type {short(type_.simpleString(), quoted=False)} has no Arrow type ({error})") from error


def items(sequence: Any) -> list[Any]:
    """Of a Scala collection."""
    iterator, members = sequence.iterator(), []
    while iterator.hasNext():
        members.append(iterator.next())
    return members


def column_name(attribute: Any) -> str:
    """Names of columns may repeat within a plan; numbers do not."""
    return str(attribute.exprId().id())


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def translated(node: Any) -> Expression:
    """Raises ``OnlySpark`` if it cannot be evaluated exactly. ``node``: a resolved expression of Spark."""
    make = _TRANSLATE.get(class_name(node))
    if make is None:
        raise OnlySpark(f"the expression {_shown(node)} is computed by Spark only")
    return make(node)


def _shown(node: Any) -> str:
    try:
        return short(str(node.sql()), quoted=False)
    except Py4JError:
        return short(str(node.toString()), quoted=False)


def _children(node: Any) -> list[Expression]:
    return [translated(child) for child in items(node.children())]


def _encoded(node: Any) -> bytes:
    return encoded_type(arrow_type(parsed_type(node)))


def _column(node: Any) -> Expression:
    parsed_type(node)
    return Column(column_name(node))


def _literal(node: Any) -> Expression:
    type_ = parsed_type(node)
    if type(type_) not in _ORDERED:
        raise OnlySpark(f"the constant {_shown(node)} is computed by Spark only")
    return _const(node.value(), encoded_type(arrow_type(type_)))


def _const(value: Any, type_: bytes) -> Const:
    if isinstance(value, JavaObject):  # Spark's own strings and decimals
        value = str(value.toString())
    return Const(bytes(value).decode("latin-1") if isinstance(value, bytes | bytearray) else value, type_)


def _alias(node: Any) -> Expression:
    return translated(node.child())


def _member(node: Any) -> Expression:
    return Member(translated(node.child()), node.ordinal())


def _comparison(op: Literal["eq", "lt", "le", "gt", "ge", "same"]) -> Callable[[Any], Expression]:
    def comparison(node: Any) -> Expression:
        if op == "ge" and class_name(node.left()) == "SparkPartitionID" and node.right().value() == 0:
            return Const(True, encoded_type(pa.bool_()))
        left, right = (parsed_type(side) for side in items(node.children()))
        if left != right or type(left) not in _ORDERED:
            raise OnlySpark(f"the comparison {_shown(node)} is computed by Spark only")
        return Compare(op, *_children(node))

    return comparison


def _in(node: Any) -> Expression:
    of, *among = _children(node)
    constants = [each for each in among if isinstance(each, Const)]
    if type(parsed_type(node.value())) not in _ORDERED or not among or len(constants) < len(among):
        raise OnlySpark(f"the comparison {_shown(node)} is computed by Spark only")
    return In(of, tuple(constants))


def _in_set(node: Any) -> Expression:
    type_ = parsed_type(node.child())
    if type(type_) not in _ORDERED or isinstance(type_, _FLOATS):
        raise OnlySpark(f"the comparison {_shown(node)} is computed by Spark only")
    encoded = encoded_type(arrow_type(type_))
    return In(translated(node.child()), tuple(_const(value, encoded) for value in items(node.hset())))


def _arithmetic(op: Literal["add", "subtract", "multiply"]) -> Callable[[Any], Expression]:
    def arithmetic(node: Any) -> Expression:
        left, right = (parsed_type(side) for side in items(node.children()))
        match left, right:
            case DecimalType(), DecimalType():
                exact = _digits(op, left, right) <= _MOST_DIGITS
            case _:
                exact = left == right and isinstance(left, (*_INTEGERS, *_FLOATS))
        mode = str(node.evalMode().toString())
        if not exact or mode not in ("ANSI", "LEGACY"):
            raise OnlySpark(f"the expression {_shown(node)} is computed by Spark only")
        first, second = _children(node)
        return Arithmetic(op, first, second, mode == "ANSI" and isinstance(left, _INTEGERS))

    return arithmetic


def _digits(op: str, left: DecimalType, right: DecimalType) -> int:
    """That all results have room in."""
    if op == "multiply":
        return left.precision + right.precision + 1
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return whole + max(left.scale, right.scale) + 1


def _negate(node: Any) -> Expression:
    type_ = parsed_type(node)
    if not isinstance(type_, (*_INTEGERS, *_FLOATS, DecimalType)):
        raise OnlySpark(f"the expression {_shown(node)} is computed by Spark only")
    return Negate(translated(node.child()), bool(node.failOnError()) and isinstance(type_, _INTEGERS))


def _cast(node: Any) -> Expression:
    of, to = parsed_type(node.child()), parsed_type(node)
    if of == to:
        return translated(node.child())
    if not _widens(of, to):
        raise OnlySpark(f"the cast {_shown(node)} from {of.simpleString()} is computed by Spark only")
    return Widen(translated(node.child()), encoded_type(arrow_type(to)))


def _widens(of: DataType, to: DataType) -> bool:
    match of, to:
        case DecimalType(), DecimalType():
            return to.scale >= of.scale and to.precision - of.precision >= to.scale - of.scale
        case (ByteType() | ShortType() | IntegerType() | LongType(), DecimalType()):
            return to.precision - to.scale >= (19 if isinstance(of, LongType) else 10)
        case (ByteType() | ShortType() | IntegerType() | LongType() | FloatType(), DoubleType()):
            return True
        case _:
            return type(of) in _INTEGERS and type(to) in _INTEGERS and _INTEGERS.index(type(of)) < _INTEGERS.index(type(to))


def _struct(node: Any) -> Expression:
    values = items(node.children())[1::2]
    if not values:
        raise OnlySpark("a struct without fields is made by Spark only")
    return MakeStruct(tuple(map(translated, values)), _encoded(node))


def _case_when(node: Any) -> Expression:
    *pairs, last = items(node.children()) if node.elseValue().isDefined() else [*items(node.children()), None]
    branches = zip(pairs[::2], pairs[1::2], strict=True)
    return _case(node, [(translated(condition), value) for condition, value in branches], last)


def _if(node: Any) -> Expression:
    condition, value, otherwise = items(node.children())
    return _case(node, [(translated(condition), value)], otherwise)


def _coalesce(node: Any) -> Expression:
    *first, last = items(node.children())
    return _case(node, [(Not(IsNull(translated(value))), value) for value in first], last)


def _case(node: Any, branches: list[tuple[Expression, Any]], otherwise: Any | None) -> Expression:
    type_ = _encoded(node)
    values = [*(value for _, value in branches), *([] if otherwise is None else [otherwise])]
    if any(_encoded(value) != type_ for value in values):
        raise OnlySpark(f"the expression {_shown(node)} is computed by Spark only")
    made = tuple((condition, translated(value)) for condition, value in branches)
    return Case(made, None if otherwise is None else translated(otherwise), type_)


def _hash(node: Any) -> Expression:
    if node.seed() != _XXHASH_SEED:
        raise OnlySpark(f"the expression {_shown(node)} is computed by Spark only")
    for child in items(node.children()):
        try:
            check_key_type(_shown(child), arrow_type(parsed_type(child)))
        except SchemaMismatch as error:
            raise OnlySpark(str(error)) from error
    return Hash(tuple(_children(node)))


_TRANSLATE: dict[str, Callable[[Any], Expression]] = {
    "AttributeReference": _column,
    "Literal": _literal,
    "Alias": _alias,
    "GetStructField": _member,
    "EqualTo": _comparison("eq"),
    "EqualNullSafe": _comparison("same"),
    "LessThan": _comparison("lt"),
    "LessThanOrEqual": _comparison("le"),
    "GreaterThan": _comparison("gt"),
    "GreaterThanOrEqual": _comparison("ge"),
    "And": lambda node: And(*_children(node)),
    "Or": lambda node: Or(*_children(node)),
    "Not": lambda node: Not(*_children(node)),
    "IsNull": lambda node: IsNull(*_children(node)),
    "IsNotNull": lambda node: Not(IsNull(*_children(node))),
    "IsNaN": lambda node: IsNan(*_children(node)),
    "In": _in,
    "InSet": _in_set,
    "Add": _arithmetic("add"),
    "Subtract": _arithmetic("subtract"),
    "Multiply": _arithmetic("multiply"),
    "UnaryMinus": _negate,
    "Cast": _cast,
    "CreateNamedStruct": _struct,
    "CaseWhen": _case_when,
    "If": _if,
    "Coalesce": _coalesce,
    "XxHash64": _hash,
}
