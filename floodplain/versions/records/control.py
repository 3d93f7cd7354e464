"""What the log has of control operations: who ran, on which state, and what was decided. Plain data, no code."""

from typing import Annotated, Literal, TypeAlias

import msgspec

LOGGED_BYTES = 2048
"""JSON up to this size is in the log as it is; of more there is only a digest. Tasks get the manifest with it in each epoch."""
REMEMBERED = 16
"""How many runs the manifest has: the last ones."""

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}\Z")]
Json: TypeAlias = Annotated[str, msgspec.Meta(max_length=LOGGED_BYTES)]
Kind: TypeAlias = Literal["value", "rescale", "tag", "update"]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result or a decision."""

    size_bytes: int
    """As JSON."""
    digest: str
    """Of that, xxh3-128."""
    json: Json = ""
    """Empty if it is too large for the log."""


class NoteControl(msgspec.Struct, frozen=True, tag="control"):
    """A control operation has looked at the state and decided. What follows from it is in the same edit."""

    name: Name
    run: Name
    """Which run of the operation: one that is in the log is not repeated."""
    operator: str
    """Whose state it has looked at."""
    kind: Kind
    result: Outcome
    """What the slots have given, merged."""
    decision: Outcome
    """The value, the number of slots, or the name of the tag; of an update null."""


class ControlRecord(msgspec.Struct, frozen=True):
    """A run in the manifest."""

    epoch: int
    """The last one before the decision."""
    at_ms: int
    note: NoteControl
