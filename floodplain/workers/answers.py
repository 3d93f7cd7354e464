"""What workers are asked, and what comes of it."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from floodplain.errors import FloodplainError, Unavailable
from floodplain.sources.parquet import FileRange
from floodplain.workers.messages import Begin, Done, Failed, Made, Read, Run

Command: TypeAlias = Begin | Read | Run
Answer: TypeAlias = Made | Done | Failed


class WorkerLost(Unavailable):
    """A worker is gone, or was silent for too long, while something was requested of it."""

    def __init__(self, why: str, worker: int) -> None:
        super().__init__(why)
        self.worker = worker

    def while_asked(self, commands: Iterable[tuple[int, Command]]) -> "WorkerLost":
        """The same, and what it was to do."""
        requested = [command for worker, command in commands if worker == self.worker]
        slots = [f"{command.operator} {command.slot}" for command in requested if isinstance(command, Run)]
        ranges = [_shown(each) for command in requested if isinstance(command, Read) for each in command.ranges]
        what = [f"{name} {', '.join(several)}" for name, several in (("slots", slots), ("ranges", ranges)) if several]
        return WorkerLost(f"{self}; it was asked for {' and '.join(what)}", self.worker) if what else self


def _shown(part: FileRange) -> str:
    return f"{part.file.path} from byte {part.start} to {part.end}"


def failure_of(answers: Mapping[int, Answer]) -> FloodplainError | None:
    """The error of the first command that failed, if one did."""
    for number in sorted(answers):
        answer = answers[number]
        if isinstance(answer, Failed):
            return answer.failure.error()
    return None
