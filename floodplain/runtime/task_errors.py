"""Carries Floodplain's errors from a task to the driver as data, so that the driver raises the same error.

Errors that a retry would not help with, as those of user functions, come in the task's report. All others are raised in the task,
so that Spark retries it; Spark's final error message then has our error in a line of its own.
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
    """One of Floodplain's errors, as a task reports it."""

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
    """In a task: adds to each of our errors a line that encodes it, as a note, which is part of its trace."""
    try:
        yield
    except FloodplainError as error:
        error.add_note(_LINE + msgspec.json.encode(Failure.of(error)).decode())
        raise


@contextmanager
def ours() -> Iterator[None]:
    """In the driver: if one of our errors ended a Spark job, raises it in place of Spark's error."""
    try:
        yield
    except FloodplainError:
        raise
    except Exception as error:
        failure = carried_by(str(error))
        if failure is None:
            raise
        raise failure.error() from None


def carried_by(text: str) -> Failure | None:
    """Our error in the text of an error of Spark, if it has one."""
    for line in _CARRIED.findall(text):
        try:
            return msgspec.json.decode(line, type=Failure)
        except msgspec.DecodeError:
            continue
    return None
