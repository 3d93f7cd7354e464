"""Names of columns and literals as Spark's expressions have them."""

import re

_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORDS = {"true", "false", "null"}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def unquoted(text: str) -> str | None:
    """The name, if the text is one that ``quoted`` made."""
    found = _QUOTED.fullmatch(text)
    return None if found is None else found[1].replace("``", "`")


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def plain_name(expression: object) -> str | None:
    """The column that an expression names, if it does nothing else."""
    if not isinstance(expression, str) or expression.lower() in _WORDS:
        return None
    return expression if _NAME.fullmatch(expression) else unquoted(expression)
