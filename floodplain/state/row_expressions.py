"""Expressions of ``prefetch``: which entry of a map or set a row will read.

A path is the name of a column, or of a field within a struct: ``page``, ``click.page``. Names with other characters than letters,
digits and ``_`` (and ``all`` and ``lazy``) need backticks, as in Spark: ``` `page url`.host ```, with backticks doubled. Several
paths, separated by commas, name several entries per row: ``page, referrer``. For anything else, compute a column upstream.
"""

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.expressions.identifiers import Path, paths_in
from floodplain.expressions.tokens import Unreadable
from floodplain.store.rows.layout import one_array
from floodplain.structs import field_at

ALL, LAZY = "all", "lazy"


def parse_paths(text: str) -> tuple[Path, ...]:
    """Parses paths. Raises ``BadInput`` with the position of an error."""
    try:
        return paths_in(text)
    except Unreadable as error:
        raise BadInput(
            f"cannot read prefetch {text!r}: {error}; write 'all', 'lazy', a column as in 'page', "
            "a field of a struct as in 'click.page', or several of these separated by commas"
        ) from None


def evaluate(path: Path, rows: pa.Table) -> pa.Array:
    """The column, or the field within it: null where an outer struct is null. Raises ``BadInput`` with the existing names."""
    name, *fields = path
    if not rows.schema.get_all_field_indices(name):
        raise BadInput(f"rows have no column {name!r}; they have {', '.join(rows.column_names)}")
    values = one_array(rows.column(name))
    for field in fields:
        if not pa.types.is_struct(values.type):
            raise BadInput(f"{name!r} is a {values.type} and has no field {field!r}")
        positions = values.type.get_all_field_indices(field)
        if not positions:
            raise BadInput(f"{name!r} has no field {field!r}; it has {', '.join(inner.name for inner in values.type)}")
        values = field_at(values, positions[0])
        name = f"{name}.{field}"
    return values
