"""Types as Spark writes them, and the Arrow types that Spark 4.3 uses for them.

One choice is ours: a ``timestamp`` is an instant, and Arrow wants a time zone for it. Spark takes the session's, which may
change between two runs; state keeps UTC. Comments on fields are read and dropped.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import pyarrow as pa

from floodplain.errors import SchemaMismatch

TIME_ZONE = "UTC"

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)

_ATOMIC: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", TIME_ZONE),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "variant": VARIANT,
    "interval day to second": pa.duration("us"),
    "time(6)": pa.time64("ns"),
}
_SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_REFUSED = {
    "char": "use string",
    "character": "use string",
    "varchar": "use string",
    "geometry": "use binary",
    "geography": "use binary",
}
_DAY_TIME = ("day", "hour", "minute", "second")
_TOKEN = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<mark>[<>(),:]))"
)
_BARE_NAME = re.compile(r"[A-Za-z0-9_]+\Z", re.ASCII)
_MAX_PRECISION = 38
_MAX_DEPTH = 100


def parse_type(text: str) -> pa.DataType:
    """``"long"``, ``"array<struct<a: int>>"``, or fields as in ``"user string, views long"``, which make a struct.

    Raises ``SchemaMismatch`` that points at the position.
    """
    if not isinstance(text, str):
        raise SchemaMismatch(f"{text!r} is not a type: write it as in 'long' or 'array<string>', or give an Arrow type")
    return _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> pa.DataType:
    tokens = _tokens(text)
    try:
        # Spark, too, tries fields first: "date date" is a field called date.
        return _Parser(text, tokens).whole_fields()
    except _Unreadable as as_fields:
        try:
            return _Parser(text, tokens).whole_type()
        except _Unreadable as as_type:
            names_a_field = len(tokens) > 2 and (tokens[1].kind in ("word", "quoted") or tokens[1].text == ":")
            meant = as_fields if names_a_field and as_fields.at > as_type.at else as_type
            raise SchemaMismatch(meant.message(text)) from None


def parse_schema(text: str) -> pa.Schema:
    """Fields as in ``"user string, views long NOT NULL"``, as an Arrow schema."""
    type_ = parse_type(text)
    if not pa.types.is_struct(type_) or type_ == VARIANT:
        raise SchemaMismatch(f"{text!r} has no fields: write them as in 'user string, views long'")
    return pa.schema(list(type_))


def as_arrow(type_: str | pa.DataType) -> pa.DataType:
    """An Arrow type as it is, or what a text says."""
    return type_ if isinstance(type_, pa.DataType) else parse_type(type_)


def as_fields(schema: str | pa.Schema | Mapping[str, str | pa.DataType]) -> dict[str, pa.DataType]:
    """Names and types from any of the forms in which fields are given."""
    if isinstance(schema, Mapping):
        return {name: as_arrow(type_) for name, type_ in schema.items()}
    fields = list(schema if isinstance(schema, pa.Schema) else parse_schema(schema))
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise SchemaMismatch(f"a field stands twice among {', '.join(names)}")
    return {field.name: field.type for field in fields}


def to_ddl(type_: pa.DataType) -> str:
    """The text that ``parse_type`` reads as this type. That array elements and map values are never null is not in it."""
    for name, atomic in _ATOMIC.items():
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
    name = field.name if _BARE_NAME.match(field.name) else f"`{field.name.replace('`', '``')}`"
    return f"{name}{separator}{to_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Unreadable(Exception):
    def __init__(self, problem: str, at: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at

    def message(self, text: str) -> str:
        line = text.replace("\n", " ")
        return f"cannot read the type {line!r}: {self.problem} at position {self.at + 1}:\n  {line}\n  {' ' * self.at}^"


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise SchemaMismatch(_Unreadable(f"unexpected {text[at]!r}", at).message(text))
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind) - (kind == "quoted")))
        at = match.end()
    return [*tokens, _Token("end", "the end", len(text))]


class _Parser:
    """Reads by recursive descent; ``_Unreadable`` says where it got stuck."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole_fields(self) -> pa.DataType:
        fields = self._fields(until="end")
        if not fields:
            self._fail("expected a type")
        return pa.struct(fields)

    def whole_type(self) -> pa.DataType:
        type_ = self._type()
        if self._peek.kind != "end":
            self._fail(f"unexpected {self._peek.text!r}")
        return type_

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek
        self._next += token.kind != "end"
        return token

    def _fail(self, problem: str, token: _Token | None = None) -> NoReturn:
        raise _Unreadable(problem, (token or self._peek).at)

    def _expect(self, mark: str) -> None:
        if self._peek.kind != "mark" or self._peek.text != mark:
            self._fail(f"expected {mark!r}, found {self._peek.text!r}")
        self._take()

    def _skip(self, mark: str) -> bool:
        found = self._peek.kind == "mark" and self._peek.text == mark
        self._next += found
        return found

    def _skip_word(self, *words: str) -> bool:
        found = self._peek.kind == "word" and self._peek.text.lower() in words
        self._next += found
        return found

    def _fields(self, until: str) -> list[pa.Field]:
        fields: dict[str, pa.Field] = {}
        while not self._at(until):
            if fields:
                self._expect(",")
            name = self._peek
            field = self._field()
            if field.name in fields:
                self._fail(f"field {field.name!r} stands twice", name)
            fields[field.name] = field
        return list(fields.values())

    def _at(self, until: str) -> bool:
        return self._peek.kind == until or (self._peek.kind == "mark" and self._peek.text == until)

    def _field(self) -> pa.Field:
        token = self._take()
        if token.kind not in ("word", "quoted"):
            self._fail(f"expected the name of a field, found {token.text!r}", token)
        name = token.text.replace("``", "`") if token.kind == "quoted" else token.text
        self._skip(":")
        at = self._peek
        type_ = self._type()
        nullable = True
        if self._skip_word("not"):
            if not self._skip_word("null"):
                self._fail("expected NULL after NOT")
            self._check_not_void(type_, at)
            nullable = False
        if self._skip_word("comment") and self._take().kind != "text":
            self._fail("expected a comment in quotes", self._tokens[self._next - 1])
        return pa.field(name, type_, nullable)

    def _type(self) -> pa.DataType:
        token = self._take()
        name = token.text.lower()
        if token.kind != "word":
            self._fail(f"expected a type, found {token.text!r}", token)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"types are nested more than {_MAX_DEPTH} deep", token)
        try:
            return self._known(name, token)
        finally:
            self._depth -= 1

    def _known(self, name: str, token: _Token) -> pa.DataType:
        if name in _NESTED:
            return self._nested(name)
        if name in _DECIMALS:
            return self._decimal()
        if name == "interval":
            return self._interval()
        if name == "time":
            return self._time()
        name = _SYNONYMS.get(name, name)
        if name in _REFUSED:
            self._fail(f"{name} cannot be kept in state ({_REFUSED[name]})", token)
        if name not in _ATOMIC:
            self._fail(f"unknown type {token.text!r}{_likely(name)}", token)
        if name == "string" and self._skip_word("collate") and not self._skip_word("utf8_binary"):
            self._fail("collated strings cannot be kept in state (use string)")
        return _ATOMIC[name]

    def _nested(self, name: str) -> pa.DataType:
        self._expect("<")
        if name == "struct":
            fields = self._fields(until=">")
            self._expect(">")
            return pa.struct(fields)
        at = self._peek
        first = self._type()
        if name == "map":
            self._check_not_void(first, at)
            self._expect(",")
            second = self._type()
        self._expect(">")
        if name == "map":
            return pa.map_(pa.field("key", first, nullable=False), pa.field("value", second))
        return pa.list_(pa.field("element", first))

    def _check_not_void(self, type_: pa.DataType, token: _Token) -> None:
        if pa.types.is_null(type_):
            self._fail("void is always null, which is not allowed here", token)

    def _decimal(self) -> pa.DataType:
        if not self._skip("("):
            return pa.decimal128(10, 0)
        precision = self._number(1, _MAX_PRECISION, "precision")
        scale = self._number(0, precision, "scale") if self._skip(",") else 0
        self._expect(")")
        return pa.decimal128(precision, scale)

    def _time(self) -> pa.DataType:
        if self._skip("("):
            self._number(0, 9, "precision")
            self._expect(")")
        return _ATOMIC["time(6)"]

    def _interval(self) -> pa.DataType:
        start = self._take()
        units = [start.text.lower()]
        if self._skip_word("to"):
            units.append(self._take().text.lower())
        places = [_DAY_TIME.index(unit) if unit in _DAY_TIME else -1 for unit in units]
        if min(places) < 0 or (len(places) == 2 and places[0] >= places[1]):
            self._fail("only intervals from days to seconds can be kept in state (use interval day to second)", start)
        return _ATOMIC["interval day to second"]

    def _number(self, low: int, high: int, what: str) -> int:
        token = self._take()
        if not token.text.isascii() or not token.text.isdigit() or not low <= int(token.text) <= high:
            self._fail(f"expected a {what} from {low} to {high}, found {token.text!r}", token)
        return int(token.text)


def _likely(name: str) -> str:
    known = [*(known for known in _ATOMIC if known.isidentifier()), *_SYNONYMS, *_DECIMALS, *_NESTED, "time", "interval"]
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
