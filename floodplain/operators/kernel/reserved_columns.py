"""Reserved names of the columns that Floodplain adds to rows."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput

PREFIX = "_floodplain_"
"""The prefix of all reserved names."""
ROWS = f"{PREFIX}rows"
"""The column of a pre-aggregated row with the number of rows it was combined from."""
ALL = f"{PREFIX}all"
"""The constant key column of a stream without keys. It is not in the output."""
RIGHT_SIDE = f"{PREFIX}right_side"
"""Whether a row is of the right side of a join."""
AT = f"{PREFIX}at"
"""The event time of a row in a join whose sides have different event-time columns."""


def check_not_reserved(what: str, names: Iterable[str]) -> None:
    """Raises if a column of the user has a reserved name. Case is ignored, as in Spark."""
    for name in names:
        if name.lower().startswith(PREFIX):
            raise BadInput(f"{what}: column {name}: names that start with {PREFIX} are reserved: rename it")


def check_keys(what: str, keys: Sequence[str], *taken: str) -> None:
    """Raises ``BadInput`` if a key has the name of a column that the operator adds to the output."""
    for name in keys:
        if name in taken:
            raise BadInput(
                f"{what}: a key is called {name}, and so is a column that the output adds: rename the key, as in "
                f"key_by(key={name!r})"
            )


def rows_in(rows: pa.Table) -> int:
    """How many rows these are, before pre-aggregation."""
    return pc.sum(rows.column(ROWS)).as_py() or 0 if ROWS in rows.column_names else len(rows)
