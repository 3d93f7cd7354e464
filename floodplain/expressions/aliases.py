"""Expressions that say their own name: ``v * 2 as w``."""

from dataclasses import dataclass

from floodplain.expressions.tokens import pieces


@dataclass(frozen=True, slots=True)
class Alias:
    expression: str
    """As it is written."""
    name: str


def alias_in(text: str) -> Alias | None:
    """The expression and its name, if the text ends in ``as name``."""
    tokens = pieces(text)
    if len(tokens) < 3:
        return None
    last, word, name = tokens[-3:]
    apart = last.end < word.start and word.end < name.start
    if not apart or not word.is_word("as") or not name.is_name:
        return None
    return Alias(text[tokens[0].start : last.end], name.value)


def has_alias(text: str) -> bool:
    """Whether an expression may have a name of its own. A cast has an ``as``, too."""
    return any(token.is_word("as") for token in pieces(text))
