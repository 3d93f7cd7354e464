"""Names of columns and literals as Spark's expressions have them."""

import re

_QUOTED = re.compile(r"`((?:[^`]|``)+)`")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def unquoted(text: str) -> str | None:
    """The name, if the text is one that ``quoted`` made."""
    found = _QUOTED.fullmatch(text)
    return None if found is None else found[1].replace("``", "`")


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
