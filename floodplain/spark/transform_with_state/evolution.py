"""What Spark checks when a processor is started again: what was declared before against what is declared now."""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 — as every PySpark user knows it

from floodplain.errors import FloodplainError, SchemaMismatch
from floodplain.spark.session_conf import is_on
from floodplain.spark.transform_with_state.handle import Declared
from floodplain.spark.transform_with_state.types import Codec
from floodplain.state.tables import safe_names
from floodplain.store.rows.widening import widens
from floodplain.versions.records.definition import SparkProcessor, SparkVariable

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
AVRO, UNSAFE_ROW = "avro", "unsaferow"
_CHECKED = "spark.sql.streaming.stateStore.stateSchemaCheck"
_MOST = "spark.sql.streaming.stateStore.valueStateSchemaEvolutionThreshold"
_STATES = "org.apache.spark.sql.execution.streaming.state"
_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_KIND = {"value": "ValueState", "list": "ListState", "map": "MapState"}

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Resumed:
    """How a processor goes on with the state that is there."""

    declared: dict[str, Declared]
    """The states, with the schemas under which they are stored."""
    encoding: str
    former: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """State → the schemas that its values had before, oldest first, as Spark's store has them."""
    gone: dict[str, SparkVariable] = field(default_factory=dict)
    """States that were declared once and are not now. Spark compares with them if they come again."""
    evolve: dict[str, Convert] = field(default_factory=dict)
    """State → from an old value to a new one, where our tables cannot read the one as the other."""
    failure: FloodplainError | None = None


def resumed(spark: SparkSession, old: SparkProcessor | None, declared: Mapping[str, Declared], new: SparkProcessor) -> Resumed:
    """``new``: the processor in Spark's terms. What Spark would refuse is the ``failure``."""
    encoding = (spark.conf.get(ENCODING, None) or UNSAFE_ROW).lower()
    if old is None:
        return Resumed(dict(declared), encoding)
    encoding = old.encoding or encoding
    before = {variable.name: variable for variable in (*old.gone.values(), *old.deleted.values(), *old.variables.values())}
    gone = {name: variable for name, variable in before.items() if name not in declared}
    check = _Check(spark, old, new, encoding)
    try:
        checked = {name: check.variable(before.get(name), one) for name, one in declared.items()}
        check.settings()
    except SchemaMismatch as error:
        return Resumed(dict(declared), encoding, gone=gone, failure=error)
    return Resumed(
        {name: one.declared for name, one in checked.items()},
        encoding,
        {name: one.former for name, one in checked.items()},
        gone,
        {name: one.evolve for name, one in checked.items() if one.evolve is not None},
    )


@dataclass(frozen=True)
class _Checked:
    declared: Declared
    former: tuple[str, ...] = ()
    evolve: Convert | None = None


class _Check:
    """Compares in Spark's own order, by Spark's own rules. Raises ``SchemaMismatch`` in Spark's words."""

    def __init__(self, spark: SparkSession, old: SparkProcessor, new: SparkProcessor, encoding: str) -> None:
        self._jvm: Any = spark._jvm
        self._old, self._new = old, new
        self._avro = encoding == AVRO
        self._lenient = not is_on(spark, _CHECKED)
        self._most = int(spark.conf.get(_MOST) or 0)

    def variable(self, before: SparkVariable | None, now: Declared) -> _Checked:
        if before is None:
            return _Checked(now)
        was = [T.StructType.fromJson(msgspec.json.decode(schema)) for schema in before.schemas]
        if not self._has_same_keys(before, now, was) or before.kind != now.kind:
            return _Checked(now)
        kept = replace(now, stored=tuple(was), whole=before.whole)
        old, new = _stored_value(was[-1], before.ttl), _stored_value(now.schemas[-1], bool(now.ttl_ms))
        if old == new:
            return _Checked(kept, before.former)
        if not self._avro:
            if _compatible(old, new):
                return _Checked(kept, before.former)
            self._refuse("StateStoreValueSchemaNotCompatible", self._text(old), self._text(new))
            return _Checked(now)
        former = (*before.former, old.json())
        for one in reversed(former):
            if not self._can_read(new, T.StructType.fromJson(msgspec.json.decode(one))):
                stored = T.StructType.fromJson(msgspec.json.decode(one))
                self._refuse("StateStoreInvalidValueSchemaEvolution", self._text(stored), self._text(new))
        if len(former) >= self._most:
            self._refuse("StateStoreValueSchemaEvolutionThresholdExceeded", len(former), self._most, before.name)
        return self._read(before, replace(now, stored=(*was[:-1], now.schemas[-1])), former)

    def settings(self) -> None:
        """What Spark compares after the schemas."""
        for name, old, new in (
            ("timeMode", self._old.time_mode, self._new.time_mode),
            ("outputMode", self._old.output_mode, self._new.output_mode),
        ):
            if old != new:
                self._refuse("StateStoreInvalidConfigAfterRestart", name, old, new, lenient=False)
        now = {variable.name: variable for variable in self._new.variables.values()}
        for before in self._old.variables.values():
            if before.name in now and now[before.name].kind != before.kind:
                kinds = _KIND[before.kind], _KIND[now[before.name].kind]
                self._refuse("StateStoreInvalidVariableTypeChange", before.name, *kinds, lenient=False)

    def _has_same_keys(self, before: SparkVariable, now: Declared, was: list[T.StructType]) -> bool:
        old = _stored_key(_key(self._old), was if before.kind == "map" else [])
        new = _stored_key(_key(self._new), list(now.schemas) if now.kind == "map" else [])
        same = _compatible(old, new)
        if not same:
            self._refuse("StateStoreKeySchemaNotCompatible", self._text(old), self._text(new))
        return same

    def _read(self, before: SparkVariable, now: Declared, former: tuple[str, ...]) -> _Checked:
        """What Avro resolves: our tables read it by themselves, or its values are made anew."""
        old, new = T.StructType.fromJson(msgspec.json.decode(before.schemas[-1])), now.schemas[-1]
        if is_native(Codec(old, whole=before.whole), Codec(new, whole=before.whole)):
            return _Checked(replace(now, whole=before.whole), former)
        # A field that was not there is null, which is a value.
        now = replace(now, whole=before.whole or (len(new) == 1 and now.kind == "value"))
        return _Checked(now, former, converter(Codec(old, whole=before.whole), Codec(new, whole=now.whole)))

    def _can_read(self, new: T.StructType, old: T.StructType) -> bool:
        """Whether Avro resolves what was written under ``old`` to ``new``."""
        avro = self._jvm.org.apache.spark.sql.avro.SchemaConverters
        validator = self._jvm.org.apache.avro.SchemaValidatorBuilder().canReadStrategy().validateAll()
        wanted = avro.toAvroTypeWithDefaults(self._java(new))
        written = self._jvm.java.util.List.of(avro.toAvroTypeWithDefaults(self._java(old)))
        try:
            validator.validate(wanted, written)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "SchemaValidationException":
                raise
            return False
        return True

    def _java(self, schema: T.StructType) -> Any:
        return self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())

    def _text(self, schema: T.StructType) -> str:
        return str(self._java(schema).toString())

    def _refuse(self, error: str, *details: Any, lenient: bool = True) -> None:
        if not (lenient and self._lenient):
            package: Any = self._jvm
            for part in (*_STATES.split("."), error):
                package = getattr(package, part)
            raise SchemaMismatch(str(package(*details).getMessage()))


def _compatible(old: Any, new: Any) -> bool:
    """Whether Spark takes a type for another one: names of fields do not matter, and what may be null now must have been so."""
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        pairs = [(one.dataType, other.dataType, one.nullable or not other.nullable) for one, other in zip(old, new, strict=False)]
        return len(old) == len(new) and all(nullable and _compatible(one, other) for one, other, nullable in pairs)
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        return (old.containsNull or not new.containsNull) and _compatible(old.elementType, new.elementType)
    if isinstance(old, T.MapType) and isinstance(new, T.MapType):
        nullable = old.valueContainsNull or not new.valueContainsNull
        return nullable and _compatible(old.keyType, new.keyType) and _compatible(old.valueType, new.valueType)
    return bool(old == new)


def _key(processor: SparkProcessor) -> T.StructType:
    return T.StructType.fromJson(msgspec.json.decode(processor.keys))


def _stored_key(key: T.StructType, of_map: list[T.StructType]) -> T.StructType:
    """The key as Spark's store has it: that of a map consists of two."""
    return T.StructType([T.StructField("key", key), T.StructField("userKey", of_map[0])]) if of_map else key


def _stored_value(value: T.StructType, ttl: bool) -> T.StructType:
    fields = [T.StructField("value", value), T.StructField("ttlExpirationMs", T.LongType())]
    return T.StructType(fields) if ttl else value


def renamed_keys(old: SparkProcessor | None, new: SparkProcessor) -> Iterator[tuple[str, str]]:
    """Columns of keys that have other names now, as tables call them: Spark knows them by their places."""
    if old is not None:
        before, now = (safe_names(dict.fromkeys(_key(each).names)).values() for each in (old, new))
        yield from ((one, other) for one, other in zip(before, now, strict=False) if one != other)


def is_native(old: Codec, new: Codec) -> bool:
    """Whether our tables read the one as the other by themselves."""
    same_field = not old.is_bare or old.schema.names == new.schema.names
    return old.is_bare == new.is_bare and same_field and _reads(old.arrow, new.arrow)


def _reads(old: pa.DataType, new: pa.DataType) -> bool:
    if old.equals(new):
        return True
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        had = {field.name: field.type for field in old}
        both = [(had[field.name], field.type) for field in new if field.name in had]
        return bool(both) and all(_reads(*pair) for pair in both)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _reads(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _reads(old.key_type, new.key_type) and _reads(old.item_type, new.item_type)
    return not (pa.types.is_nested(old) or pa.types.is_nested(new)) and widens(old, new)


def converter(old: Codec, new: Codec) -> Convert:
    """From a stored value under one schema to one under the other. Requires: Avro resolves them."""
    convert, name_before, name_now = _struct(old.schema, new.schema), old.schema.names[0], new.schema.names[0]

    def converted(value: Any) -> Any:
        fields = convert({name_before: value} if old.is_bare else value)
        return fields[name_now] if new.is_bare else fields

    return converted


def _struct(old: T.StructType, new: T.StructType) -> Convert:
    had = {field.name: field.dataType for field in old}
    parts = {field.name: _converter(had[field.name], field.dataType) for field in new if field.name in had}
    return lambda value: {name: parts[name](value[name]) if name in parts else None for name in new.names}


def _converter(old: T.DataType, new: T.DataType) -> Convert:
    convert = _not_null(old, new)
    return lambda value: None if value is None else convert(value)


def _not_null(old: T.DataType, new: T.DataType) -> Convert:
    if old == new:
        return lambda value: value
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        return _struct(old, new)
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        element = _converter(old.elementType, new.elementType)
        return lambda value: [element(one) for one in value]
    if isinstance(old, T.MapType) and isinstance(new, T.MapType):
        entry = _converter(old.valueType, new.valueType)
        return lambda value: {key: entry(one) for key, one in _pairs(value)}
    if isinstance(old, T.StringType) and isinstance(new, T.BinaryType):
        return lambda value: value.encode()
    if isinstance(old, T.BinaryType) and isinstance(new, T.StringType):
        return lambda value: value.decode(errors="replace")
    return lambda value: _from_number(_as_number(value), new)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else value


def _as_number(value: Any) -> Any:
    """As Avro keeps it: dates are days, times are microseconds."""
    match value:
        case datetime.datetime():
            return ((value if value.tzinfo else value.replace(tzinfo=datetime.UTC)) - _EPOCH) // _MICROSECOND
        case datetime.date():
            return (value - _EPOCH.date()).days
        case _:
            return value


def _from_number(number: Any, new: T.DataType) -> Any:
    match new:
        case T.ByteType() | T.ShortType() | T.IntegerType():
            half = 1 << (_BITS[type(new)] - 1)
            return (number + half) % (2 * half) - half
        case T.FloatType():
            return float(np.float32(number))
        case T.DoubleType():
            return float(number)
        case T.DateType():
            return _EPOCH.date() + datetime.timedelta(days=number)
        case T.TimestampType():
            return _EPOCH + number * _MICROSECOND
        case T.TimestampNTZType():
            return _EPOCH.replace(tzinfo=None) + number * _MICROSECOND
        case _:
            return number
