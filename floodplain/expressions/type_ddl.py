"""Types as Spark's DDL writes them, read into the Arrow types that Spark 4.3 uses for them.

One choice is ours: a ``timestamp`` is an instant, and Arrow wants a time zone for it. Spark takes the session's, which may
change between two runs; state keeps UTC. Comments on fields are read and dropped.
"""

import difflib
from functools import lru_cache
from typing import NoReturn

import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.expressions.tokens import Kind, Token, Tokens, Unreadable, pieces

TIME_ZONE = "UTC"

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)

ATOMIC: dict[str, pa.DataType] = {
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
    except Unreadable as as_fields:
        try:
            return _Parser(text, tokens).whole_type()
        except Unreadable as as_type:
            names_a_field = len(tokens) > 2 and (tokens[1].is_name or tokens[1].is_mark(":"))
            meant = as_fields if names_a_field and as_fields.at > as_type.at else as_type
            raise SchemaMismatch(_message(meant, text)) from None


def _message(error: Unreadable, text: str) -> str:
    line = text.replace("\n", " ")
    return f"cannot read the type {line!r}: {error}:\n  {line}\n  {' ' * error.at}^"


def _tokens(text: str) -> Tokens:
    """Those that types are made of, and then the end."""
    tokens = pieces(text)
    for token in tokens:
        if not (token.is_name or token.kind is Kind.TEXT or token.is_mark(*"<>(),:")):
            raise SchemaMismatch(_message(Unreadable(f"unexpected {token.text[0]!r}", token.start), text))
    return (*tokens, Token(Kind.END, "the end", "the end", len(text), len(text)))


class _Parser:
    """Reads by recursive descent; ``Unreadable`` says where it got stuck."""

    def __init__(self, text: str, tokens: Tokens) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole_fields(self) -> pa.DataType:
        fields = self._fields(until=None)
        if not fields:
            self._fail("expected a type")
        return pa.struct(fields)

    def whole_type(self) -> pa.DataType:
        type_ = self._type()
        if self._peek.kind is not Kind.END:
            self._fail(f"unexpected {self._peek.text!r}")
        return type_

    @property
    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._peek
        self._next += token.kind is not Kind.END
        return token

    def _fail(self, problem: str, token: Token | None = None) -> NoReturn:
        raise Unreadable(problem, (token or self._peek).start)

    def _expect(self, mark: str) -> None:
        if not self._peek.is_mark(mark):
            self._fail(f"expected {mark!r}, found {self._peek.text!r}")
        self._take()

    def _skip(self, mark: str) -> bool:
        skipped = self._peek.is_mark(mark)
        self._next += skipped
        return skipped

    def _skip_word(self, *words: str) -> bool:
        skipped = self._peek.is_word(*words)
        self._next += skipped
        return skipped

    def _fields(self, until: str | None) -> list[pa.Field]:
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

    def _at(self, until: str | None) -> bool:
        return self._peek.kind is Kind.END if until is None else self._peek.is_mark(until)

    def _field(self) -> pa.Field:
        token = self._take()
        if not token.is_name:
            self._fail(f"expected the name of a field, found {token.text!r}", token)
        self._skip(":")
        at = self._peek
        type_ = self._type()
        nullable = True
        if self._skip_word("not"):
            if not self._skip_word("null"):
                self._fail("expected NULL after NOT")
            self._check_not_void(type_, at)
            nullable = False
        if self._skip_word("comment") and self._take().kind is not Kind.TEXT:
            self._fail("expected a comment in quotes", self._tokens[self._next - 1])
        return pa.field(token.value, type_, nullable)

    def _type(self) -> pa.DataType:
        token = self._take()
        name = token.text.lower()
        if token.kind is not Kind.WORD:
            self._fail(f"expected a type, found {token.text!r}", token)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"types are nested more than {_MAX_DEPTH} deep", token)
        try:
            return self._known(name, token)
        finally:
            self._depth -= 1

    def _known(self, name: str, token: Token) -> pa.DataType:
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
        if name not in ATOMIC:
            self._fail(f"unknown type {token.text!r}{_likely(name)}", token)
        if name == "string" and self._skip_word("collate") and not self._skip_word("utf8_binary"):
            self._fail("collated strings cannot be kept in state (use string)")
        return ATOMIC[name]

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

    def _check_not_void(self, type_: pa.DataType, token: Token) -> None:
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
        return ATOMIC["time(6)"]

    def _interval(self) -> pa.DataType:
        start = self._take()
        units = [start.text.lower()]
        if self._skip_word("to"):
            units.append(self._take().text.lower())
        places = [_DAY_TIME.index(unit) if unit in _DAY_TIME else -1 for unit in units]
        if min(places) < 0 or (len(places) == 2 and places[0] >= places[1]):
            self._fail("only intervals from days to seconds can be kept in state (use interval day to second)", start)
        return ATOMIC["interval day to second"]

    def _number(self, low: int, high: int, what: str) -> int:
        token = self._take()
        if not token.text.isascii() or not token.text.isdigit() or not low <= int(token.text) <= high:
            self._fail(f"expected a {what} from {low} to {high}, found {token.text!r}", token)
        return int(token.text)


def _likely(name: str) -> str:
    known = [*(known for known in ATOMIC if known.isidentifier()), *_SYNONYMS, *_DECIMALS, *_NESTED, "time", "interval"]
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
