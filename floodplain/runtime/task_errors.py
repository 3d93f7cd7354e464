"""Errors of ours on their way from a task to the driver: as data, so that they arrive as what they were.

What a user's function is to blame for comes in the task's report: trying again would not help. All else is raised, so that Spark
tries again; its last words to the driver then hold the error in a line of its own.
"""

import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from floodplain import errors
from floodplain.errors import BadInput, FloodplainError, MergeUnavailable, UserError

FINAL = (UserError, BadInput, MergeUnavailable)
"""What a second attempt at a task would end with, too."""
MOST_TRACE = 20_000
"""Characters. The end of a trace says most."""

_KINDS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, FloodplainError)}
_LINE = "floodplain-failure: "
_CARRIED = re.compile(rf"^\s*{_LINE}(\{{.*\}})\s*$", re.MULTILINE)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of ours, as a task tells it."""

    kind: str
    message: str
    trace: str
    fields: dict[str, str | int | None] = {}

    @classmethod
    def of(cls, error: FloodplainError) -> "Failure":
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
        fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
        return cls(kind, str(error), _trace(error), fields)

    def error(self) -> FloodplainError:
        """As it was raised, but for its trace, which follows the message as a note."""
        kind = _KINDS.get(self.kind, FloodplainError)
        made: Any = kind.__new__(kind)
        made.args = (self.message,)
        vars(made).update(self.fields)
        made.add_note(f"In the task:\n{self.trace}")
        return made


def _trace(error: FloodplainError) -> str:
    """That of the user's own error, if there is one."""
    shown = error.__cause__ or error
    text = "".join(traceback.format_exception(shown)).rstrip()
    return text if len(text) <= MOST_TRACE else f"…{text[-MOST_TRACE:]}"


@contextmanager
def carried() -> Iterator[None]:
    """In a task: errors of ours that leave it say in a line of their trace what they are."""
    try:
        yield
    except FloodplainError as error:
        error.add_note(_LINE + msgspec.json.encode(Failure.of(error)).decode())
        raise


@contextmanager
def ours() -> Iterator[None]:
    """In the driver: where an error of ours ended a job of Spark, it is raised in place of Spark's."""
    try:
        yield
    except FloodplainError:
        raise
    except Exception as error:
        found = carried_by(str(error))
        if found is None:
            raise
        raise found.error() from None


def carried_by(text: str) -> Failure | None:
    """The error of ours that what Spark says holds, if it does."""
    for line in _CARRIED.findall(text):
        try:
            return msgspec.json.decode(line, type=Failure)
        except msgspec.DecodeError:
            continue
    return None
