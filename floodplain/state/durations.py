"""Parses durations, such as ``"10 minutes"``, to milliseconds."""

import re
from datetime import timedelta

from floodplain.errors import BadInput

_UNITS_MS: dict[str, float] = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_NAMES = {
    "us": ("microsecond", "microseconds"),
    "ms": ("millisecond", "milliseconds", "milli", "millis"),
    "s": ("second", "seconds", "sec", "secs"),
    "min": ("minute", "minutes", "mins", "m"),
    "h": ("hour", "hours", "hr", "hrs"),
    "d": ("day", "days"),
    "w": ("week", "weeks"),
}
_UNIT_OF = {name: unit for unit, names in _NAMES.items() for name in (unit, *names)}
_PART = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)\s*,?", re.IGNORECASE)

MAX_MS = (1 << 62) - 1
"""Can be added to any point in time without overflow."""


def interval_s(duration: str | timedelta, what: str) -> float:
    """As ``to_ms``, in seconds and more than nothing."""
    interval_ms = to_ms(duration, what)
    if not interval_ms:
        raise BadInput(f"{what} {duration!r} is not possible: it must be longer than nothing")
    return interval_ms / 1000


def to_ms(duration: str | timedelta, what: str = "duration") -> int:
    """``"1 hour"``, ``"1 hour 30 minutes"``, ``"500 ms"`` or a ``timedelta`` as whole milliseconds, 0 or more.

    Raises ``BadInput`` for months and years, which have no fixed length, and for fractions of a millisecond.
    """
    if isinstance(duration, timedelta):
        return _checked(duration / timedelta(milliseconds=1), duration, what)
    if not isinstance(duration, str):
        raise BadInput(f"{what} {duration!r} is not a length of time: write it as in '10 minutes', or give a timedelta")
    total_ms, at = 0.0, 0
    text = duration.strip().removeprefix("interval ")
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise BadInput(
                f"{what} {duration!r} is not a length of time at {text[at:]!r}: write it as in '10 minutes' or '500 ms'"
            )
        total_ms += float(part["number"]) * _unit_ms(part["unit"], duration, what)
        at = part.end()
    if not text:
        raise BadInput(f"{what} is empty: write it as in '10 minutes' or '500 ms'")
    return _checked(total_ms, duration, what)


def _unit_ms(unit: str, duration: str, what: str) -> float:
    known = _UNIT_OF.get(unit.lower())
    if known is None:
        raise BadInput(f"{what} {duration!r}: {unit!r} is no unit with a fixed length; use {', '.join(_UNITS_MS)}")
    return _UNITS_MS[known]


def _checked(total_ms: float, duration: object, what: str) -> int:
    rounded = round(total_ms)
    if abs(total_ms - rounded) > 1e-6 or not 0 <= rounded <= MAX_MS:
        raise BadInput(f"{what} {duration!r} is not a whole number of milliseconds from 0 to {MAX_MS}")
    return rounded


def duration(time_ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if time_ms and time_ms % size == 0:
            return f"{time_ms // size} {unit}"
    return f"{time_ms} ms"
