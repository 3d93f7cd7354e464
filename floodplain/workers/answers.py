"""What workers are asked, and what comes of it."""

from collections.abc import Mapping
from typing import TypeAlias

from floodplain.errors import FloodplainError, Unavailable
from floodplain.workers.messages import Begin, Done, Failed, Made, Read, Run

Command: TypeAlias = Begin | Read | Run
Answer: TypeAlias = Made | Done | Failed


class WorkerLost(Unavailable):
    """A worker is gone, or was silent for too long, while something was requested of it."""


def failure_of(answers: Mapping[int, Answer]) -> FloodplainError | None:
    """The error of the first command that failed, if one did."""
    for number in sorted(answers):
        answer = answers[number]
        if isinstance(answer, Failed):
            return answer.failure.error()
    return None
