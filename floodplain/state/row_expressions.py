"""What ``prefetch`` can say of the row: which entry of a map or set it will want.

A path is the name of a column, or of a field within a struct: ``page``, ``click.page``. Names that hold anything but letters,
digits and ``_`` (or are ``all`` or ``lazy``) stand in backticks, as in Spark: ``` `page url`.host ```, with a backtick
doubled. Several paths, separated by commas, name several entries of one row: ``page, referrer``. That is the whole language:
more is a column of the rows, made by Spark before they come.
"""

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.expressions.identifiers import Path, paths_in
from floodplain.expressions.tokens import Unreadable
from floodplain.store.rows.layout import one_array
from floodplain.structs import field_at

ALL, LAZY = "all", "lazy"


def parse_paths(text: str) -> tuple[Path, ...]:
    """The paths that the text names. Raises ``BadInput`` that points at the position."""
    try:
        return paths_in(text)
    except Unreadable as error:
        raise BadInput(
            f"cannot read prefetch {text!r}: {error}; write 'all', 'lazy', a column as in 'page', "
            "a field of a struct as in 'click.page', or several of these separated by commas"
        ) from None


def evaluate(path: Path, rows: pa.Table) -> pa.Array:
    """The column, or the field within it: null where any struct on the way is. Raises ``BadInput`` saying what there is."""
    name, *fields = path
    if not rows.schema.get_all_field_indices(name):
        raise BadInput(f"rows have no column {name!r}; they have {', '.join(rows.column_names)}")
    values = one_array(rows.column(name))
    for field in fields:
        if not pa.types.is_struct(values.type):
            raise BadInput(f"{name!r} is a {values.type} and has no field {field!r}")
        found = values.type.get_all_field_indices(field)
        if not found:
            raise BadInput(f"{name!r} has no field {field!r}; it has {', '.join(inner.name for inner in values.type)}")
        values = field_at(values, found[0])
        name = f"{name}.{field}"
    return values
