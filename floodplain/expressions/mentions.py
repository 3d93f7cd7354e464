"""Whether an expression of any kind goes by a column."""

from floodplain.expressions.tokens import pieces


def mentions(text: str, column: str) -> bool:
    """Whether the column is named, or all columns are, as in ``struct(*)``. A function or a field of that name is another."""
    tokens = pieces(text)
    for before, token, after in zip((None, *tokens), tokens, (*tokens[1:], None), strict=False):
        if token.is_mark("*") and before is not None and before.is_mark("(", ","):
            return True
        called = after is not None and after.is_mark("(")
        field = before is not None and before.is_mark(".") and before.end == token.start
        if token.is_name and token.value.lower() == column and not called and not field:
            return True
    return False
