"""Points in time as users give them to timers."""

from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any

from floodplain.errors import BadInput, short

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def point_ms(at: Any, *, naive: bool = False) -> int:
    """As milliseconds since 1970, rounded down, as event times are where they are compared with a watermark.

    ``naive``: times without a zone are taken as Spark takes those of a ``timestamp_ntz``, which is in UTC; else they are
    refused, because nobody can tell which instant they are.
    """
    if isinstance(at, datetime):
        if at.tzinfo is None and not naive:
            raise BadInput(
                f"{at!r} has no time zone, so it is no point in time: give it one, as in datetime(…, tzinfo=UTC), or milliseconds"
            )
        return ((at.replace(tzinfo=UTC) if at.tzinfo is None else at) - _EPOCH) // _MS
    if isinstance(at, timedelta):
        raise BadInput(f"{at!r} is a length of time, not a point in time: add it to one, or give milliseconds since 1970")
    try:
        whole = int(at) if isinstance(at, float) and at.is_integer() else index(at)
    except TypeError as error:
        raise BadInput(f"{short(at)} is not a point in time: give whole milliseconds since 1970, or a datetime") from error
    return whole
