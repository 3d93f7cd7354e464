"""Names of columns that steps of ours put beside those of users."""

from collections.abc import Iterable

from floodplain.errors import BadInput

PREFIX = "_floodplain_"
"""What they all begin with, so that none is a user's."""


def check_not_reserved(what: str, names: Iterable[str]) -> None:
    """Raises if one of a user's columns has a name that is kept for ours. Case does not count, as in Spark."""
    for name in names:
        if name.lower().startswith(PREFIX):
            raise BadInput(f"{what}: column {name}: names that start with {PREFIX} are kept for columns of ours: rename it")
