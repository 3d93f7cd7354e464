"""Spark's SQL as tokens: the only module that imports sqlglot, and none of its classes leave it.

Only the tokenizer is used. Spark lets nearly every word name a column (``order``, ``end``, ``show``), and sqlglot's parser takes
many of them for its own, so here no word is a keyword: the readers of this room judge a word by its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

_QUOTES = "'\"`"


class Unreadable(Exception):
    """A text is not what a reader reads. The caller knows what it is for, and says what is possible."""

    def __init__(self, problem: str, at: int) -> None:
        super().__init__(f"{problem} at position {at + 1}")
        self.problem = problem
        self.at = at


class Kind(Enum):
    WORD = "word"
    QUOTED = "quoted"
    """A name in backticks."""
    TEXT = "text"
    """A string in single or double quotes."""
    NUMBER = "number"
    MARK = "mark"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    """As it is written."""
    value: str
    """Without quotes and escapes."""
    start: int
    end: int

    @property
    def is_name(self) -> bool:
        return self.kind is Kind.WORD or (self.kind is Kind.QUOTED and bool(self.value))

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these, in any case and without quotes."""
        return self.kind is Kind.WORD and self.text.lower() in words

    def is_mark(self, *marks: str) -> bool:
        return self.kind is Kind.MARK and self.text in marks


Tokens: TypeAlias = tuple[Token, ...]


@lru_cache(maxsize=4096)
def tokens(text: str) -> Tokens:
    """The text with whole numbers (``-`` apart) and operators: ``a<=>1L`` is ``a``, ``<=>``, ``1L``.

    A quote that nothing closes is a mark.
    """
    read: list[Token] = []
    for token in _scanned(text, 0):
        if token.kind is Kind.WORD and (read and read[-1].kind is Kind.NUMBER and read[-1].end == token.start):
            number = read.pop()  # 0x1F: a name
            token = _plain(Kind.WORD, text, number.start, token.end)
        read.append(token)
    return tuple(read)


@lru_cache(maxsize=4096)
def pieces(text: str) -> Tokens:
    """The text with everything outside quotes as words and single characters: ``a<=1.5`` is ``a``, ``<``, ``=``, ``1``, ``.``,
    ``5``. Names, types and orders need no more, and the log records expressions so.
    """
    read: list[Token] = []
    at = 0
    # Without quotes there is nothing to ask sqlglot: tasks read types and paths, and need not import it for them.
    for token in tokens(text) if any(quote in text for quote in _QUOTES) else ():
        if token.kind in (Kind.QUOTED, Kind.TEXT):
            read += [*_words_and_marks(text, at, token.start), token]
            at = token.end
    return (*read, *_words_and_marks(text, at, len(text)))


def _words_and_marks(text: str, start: int, end: int) -> Iterator[Token]:
    at = start
    while at < end:
        until = at + 1
        if _is_word(text[at]):
            while until < end and _is_word(text[until]):
                until += 1
            yield _plain(Kind.WORD, text, at, until)
        elif not text[at].isspace():
            yield _plain(Kind.MARK, text, at, until)
        at = until


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _plain(kind: Kind, text: str, start: int, end: int) -> Token:
    return Token(kind, text[start:end], text[start:end], start, end)


def _scanned(text: str, start: int) -> Iterator[Token]:
    while start < len(text):
        scanned, failed = _of_sqlglot(text[start:])
        end = start
        for each in scanned:
            if start + each.start < end:
                continue  # of 1L sqlglot makes 1, :: and BIGINT, all in one place
            end = start + each.end + 1
            yield from _ours(each, text, start + each.start, end)
        if not failed:
            return
        opening = next((at for at in range(end, len(text)) if text[at] in _QUOTES), len(text))
        yield from _words_and_marks(text, end, min(opening + 1, len(text)))
        start = opening + 1


def _ours(token: Any, text: str, start: int, end: int) -> Iterator[Token]:
    if token.token_type.name == "NUMBER":
        yield _plain(Kind.NUMBER, text, start, end)
    elif text[end - 1] in _QUOTES:
        opening = next(at for at in range(start, end) if text[at] in _QUOTES)  # of n'x' the n is a word
        yield from _words_and_marks(text, start, opening)
        kind = Kind.QUOTED if text[opening] == "`" else Kind.TEXT
        yield Token(kind, text[opening:end], token.text, opening, end)
    elif any(map(_is_word, text[start:end])):
        yield from _words_and_marks(text, start, end)
    else:
        yield _plain(Kind.MARK, text, start, end)


def _of_sqlglot(text: str) -> tuple[list[Any], bool]:
    """The tokens up to the end, or up to a quote that nothing closes."""
    from sqlglot.errors import TokenError

    tokenizer = _tokenizer()("spark")
    try:
        return tokenizer.tokenize(text), False
    except TokenError:
        return tokenizer.tokens, True


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    """Spark's, but comments, raw and hexadecimal strings are marks and words, as the log has always recorded them."""
    # Imported at the first use: it takes 0.1 s, a quarter of what `import floodplain` takes.
    from sqlglot.dialects.spark import Spark

    known, types = Spark.Tokenizer.KEYWORDS, set(Spark.Tokenizer.NUMERIC_LITERALS.values())
    operators = {word for word in known if not any(map(_is_word, word))} - {Spark.Tokenizer.HINT_START}

    class Tokenizer(Spark.Tokenizer):
        KEYWORDS = {word: known[word] for word in operators | types}  # noqa: RUF012
        COMMANDS = set()  # noqa: RUF012
        COMMENTS = []  # noqa: RUF012
        RAW_STRINGS = []  # noqa: RUF012
        HEX_STRINGS = []  # noqa: RUF012

    return Tokenizer
