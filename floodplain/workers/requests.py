"""What was requested of which worker, and what came of it. Not for several threads: its owner has a lock."""

from collections.abc import Sequence

from floodplain.workers.answers import Answer, Command, WorkerLost
from floodplain.workers.messages import Beat, Failed


class Requests:
    """The commands that are waited for together."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}
        """Command → the worker that owes the answer."""
        self._answers: dict[int, Answer] = {}
        self._failed = False
        """Whether one of the answers is a failure."""
        self._lost: dict[int, str] = {}
        """Commands that are not answered any more, and why."""

    def begin(self, commands: Sequence[tuple[int, Command]]) -> None:
        """Forget all earlier ones."""
        self._answers.clear()
        self._failed = False
        self._lost.clear()
        self._workers = {command.id: worker for worker, command in commands}

    def result(self) -> dict[int, Answer] | None:
        """The answers by command, once all are there or one has failed. Raises ``WorkerLost`` if one will not come."""
        if len(self._answers) == len(self._workers) or self._failed:
            return dict(self._answers)
        if self._lost:
            number, why = next(iter(self._lost.items()))
            raise WorkerLost(why, self._workers[number])
        return None

    def take(self, worker: int, answer: Answer) -> None:
        """An answer counts once, and only from the worker that owes it."""
        if self._workers.get(answer.id) == worker:
            self._answers.setdefault(answer.id, answer)
            self._failed |= isinstance(self._answers[answer.id], Failed)

    def compare(self, worker: int, beat: Beat) -> None:
        """What the worker has seen, and does not work at, without an answer: it got lost on its way, or the answer did."""
        for number in self.owed_by(worker):
            if number <= beat.seen and number not in beat.open:
                self._lost[number] = f"worker {worker} and the driver disagree: a command or its answer got lost"

    def lose(self, worker: int, why: str) -> None:
        """The worker is lost, and its answers with it."""
        for number in self.owed_by(worker):
            self._lost[number] = f"worker {worker} is lost: {why}"

    def owed_by(self, worker: int) -> list[int]:
        return [
            number
            for number, owner in self._workers.items()
            if owner == worker and number not in self._answers and number not in self._lost
        ]
