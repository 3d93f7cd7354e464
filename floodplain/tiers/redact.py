"""Redacts credentials from locations and messages."""

import re
from collections.abc import Mapping

_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_SIGNED = re.compile(r"(://[^?#\s]*)[?#]\S*")
SHORTEST = 4
"""Shorter values (true, 1) are no secrets, and stand in many words."""


def without_credentials(location: str) -> str:
    """A URL, and those in a text, without user, password, query and fragment, any of which may give access; a path as it is."""
    return _SIGNED.sub(r"\1", _USER.sub("", location))


def without_values(text: str, options: Mapping[str, str]) -> str:
    """``text`` without the values of these options."""
    for value in sorted(map(str, options.values()), key=len, reverse=True):
        if len(value) > SHORTEST:
            text = text.replace(value, "…")
    return text
