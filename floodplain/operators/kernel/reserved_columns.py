"""Names of columns that steps of ours put beside those of users."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput

PREFIX = "_floodplain_"
"""What they all begin with, so that none is a user's."""
ROWS = f"{PREFIX}rows"
"""The column that says how many rows one stands for."""
ALL = f"{PREFIX}all"
"""The key that all rows have where a stream has no keys. It does not come out."""
RIGHT_SIDE = f"{PREFIX}right_side"
"""Whether a row is one of the right side of a join."""
AT = f"{PREFIX}at"
"""The event time of a row, where both sides of a join have their own."""


def check_not_reserved(what: str, names: Iterable[str]) -> None:
    """Raises if one of a user's columns has a name that is kept for ours. Case does not count, as in Spark."""
    for name in names:
        if name.lower().startswith(PREFIX):
            raise BadInput(f"{what}: column {name}: names that start with {PREFIX} are kept for columns of ours: rename it")


def check_keys(what: str, keys: Sequence[str], *taken: str) -> None:
    """Raises ``BadInput`` where a key has the name of a column that the output adds."""
    for name in keys:
        if name in taken:
            raise BadInput(
                f"{what}: a key is called {name}, as a column that the output adds: give it another name, as in "
                f"key_by(key={name!r})"
            )


def rows_in(rows: pa.Table) -> int:
    """How many rows these stand for."""
    return pc.sum(rows.column(ROWS)).as_py() or 0 if ROWS in rows.column_names else len(rows)
