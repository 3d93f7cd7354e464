"""A worker: one process that stays, owns slots while the coordinator says so, and keeps what it has read of their state."""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from floodplain.clock import Clock, Randomness
from floodplain.errors import BadInput, FloodplainError
from floodplain.runtime.task_errors import Failure
from floodplain.workers.channel import Channel, Disconnected, connect
from floodplain.workers.commands import CommandRunner
from floodplain.workers.kit import WorkerKit
from floodplain.workers.messages import (
    Abandon,
    Beat,
    Begin,
    Done,
    End,
    Failed,
    Fenced,
    Message,
    Prefetch,
    Prefetched,
    Read,
    Register,
    Run,
    Welcome,
)
from floodplain.workers.piece_server import PieceServer
from floodplain.workers.pieces import PieceStore
from floodplain.workers.prefetching import Prefetcher

BEAT_S = 0.5
"""Between two signs of life."""
PAUSED_S = 1.0
"""A beat that comes so late was late because this process was stopped, or user code let no other thread run: the driver is not to
blame for what was not heard meanwhile."""
GRACE_S = 1.0
"""How long a worker that has lost its driver may take to end by itself."""
LOST = 17
"""Exit code of a worker that ends because its driver is gone."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """One launch of a worker."""

    worker: int
    job: int
    """How often this worker has been launched before."""
    attempt: int
    """Spark's attempt at it: the newest counts."""
    pid: int


def work(kit: WorkerKit, launch: Launch, clock: Clock, randomness: Randomness, leave: Callable[[int], None]) -> None:
    """Serve the coordinator until it ends the query. ``leave`` ends the process at once, with an exit code.

    Returns at once if there is no coordinator any more: the query is over.
    """
    try:
        channel = connect(kit.address, kit.credentials, randomness)
    except Disconnected as error:
        _log.warning("worker %s: the coordinator cannot be reached, so the query is taken to be over: %s", launch.worker, error)
        return
    worker = Worker(kit, launch, channel, clock, randomness, leave)
    try:
        worker.serve()
    finally:
        worker.close()


class _Ledger:
    """Which commands have come, and which of them wait for their answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0
        self._open: set[int] = set()

    def take(self, number: int) -> bool:
        """Whether the command is new. Numbers only grow: another has come twice, or too late."""
        with self._lock:
            if number <= self._newest:
                return False
            self._newest = number
            self._open.add(number)
            return True

    def advance(self, newest: int) -> None:
        with self._lock:
            self._newest = max(self._newest, newest)

    def answered(self, number: int) -> None:
        """Requires: the answer was sent."""
        with self._lock:
            self._open.discard(number)

    def beat(self) -> Beat:
        with self._lock:
            return Beat(self._newest, tuple(sorted(self._open)))


class Worker:
    """Runs commands one after the other in the thread that calls ``serve``; other threads listen, beat and hand out rows."""

    def __init__(
        self,
        kit: WorkerKit,
        launch: Launch,
        channel: Channel,
        clock: Clock,
        randomness: Randomness,
        leave: Callable[[int], None],
    ) -> None:
        self._launch, self._channel, self._clock, self._leave = launch, channel, clock, leave
        self._reach, self._alone_s = kit.reach, kit.alone_s
        self._pieces = PieceStore()
        self._server = PieceServer(self._pieces, launch.worker, channel.host, kit.credentials, randomness, kit.reach)
        self._commands = CommandRunner(kit, launch.worker, self._pieces, randomness)
        self._prefetcher = Prefetcher(kit, clock, self._prefetched)
        self._ledger = _Ledger()
        self._queue: queue.SimpleQueue[Read | Run | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._heard_s = clock.monotonic_s()

    def serve(self) -> None:
        launch = self._launch
        try:
            self._channel.send(Register(launch.job, launch.attempt, launch.pid, self._server.peer))
            self._start(self._beat)
            answer, _ = self._channel.receive()
        except Disconnected:
            return
        if isinstance(answer, End):
            return
        if not isinstance(answer, Welcome):
            _log.warning("worker %s: another attempt has its place; this one waits", launch.worker)
        # One that is fenced waits, too: if it returned, Spark would count the task as done and end the one that lives.
        self._start(self._listen)
        while (command := self._queue.get()) is not None:
            answer = self._answer(command)
            self._reach("answer")
            self._send(command.id, answer)
            del command  # it may have many broadcast rows

    @staticmethod
    def _start(target: Callable[[], None]) -> None:
        threading.Thread(target=target, name="floodplain-worker", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._channel.close()
        self._server.close()
        self._prefetcher.close()
        self._commands.close()
        self._pieces.close()

    def _answer(self, command: Read | Run) -> Message:
        try:
            return self._commands.run(command)
        except FloodplainError as error:
            return Failed(command.id, Failure.of(error))
        except Exception as error:
            wrapped = FloodplainError(f"worker {self._launch.worker}: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            return Failed(command.id, Failure.of(wrapped))

    def _send(self, number: int, answer: Message) -> None:
        try:
            try:
                self._channel.send(answer)
            except BadInput as error:
                self._channel.send(Failed(number, Failure.of(error)))
        except Disconnected:
            self._queue.put(None)
        else:
            self._ledger.answered(number)

    def _listen(self) -> None:
        """Ends with the connection. Whatever else goes wrong here ends it, too: a worker that is deaf must not seem to live."""
        try:
            while True:
                self._hear()
        except Disconnected:
            pass
        except Exception:
            _log.exception("worker %s ends", self._launch.worker)
            self._channel.close()
        self._commands.abandon_all()
        self._queue.put(None)
        if not self._over.wait(GRACE_S):
            self._leave(LOST)

    def _hear(self) -> None:
        """Take the next message."""
        message, _ = self._channel.receive()
        self._heard_s = self._clock.monotonic_s()
        match message:
            case Begin() | Read() | Run():
                if self._ledger.take(message.id):
                    self._take(message)
            case Beat(seen=seen):
                self._ledger.advance(seen)
            case Abandon(nonce=nonce):
                self._commands.abandon(nonce)
            case Prefetch():
                self._prefetcher.take(message)
            case Fenced():
                self._commands.abandon_all()
            case End(at_once=True):
                self._leave(LOST)
            case End():
                self._queue.put(None)
            case _:
                raise Disconnected(f"{type(message).__name__} is no message for a worker")

    def _take(self, command: Begin | Read | Run) -> None:
        if not isinstance(command, Begin):
            self._queue.put(command)
            return
        try:
            self._commands.begin(command)
            answer: Message = Done(command.id, b"")
        except FloodplainError as error:
            answer = Failed(command.id, Failure.of(error))
        self._send(command.id, answer)

    def _prefetched(self, answer: Prefetched) -> None:
        with suppress(Disconnected):
            self._channel.send(answer)

    def _beat(self) -> None:
        """Waits for nothing: it is also what ends a worker whose driver is gone."""
        beaten_s = self._clock.monotonic_s()
        while not self._over.wait(BEAT_S):
            now_s = self._clock.monotonic_s()
            if now_s - beaten_s > BEAT_S + PAUSED_S:
                self._heard_s += now_s - beaten_s
            beaten_s = now_s
            if now_s - self._heard_s > self._alone_s:
                self._leave(LOST)
            with suppress(Disconnected):
                self._channel.offer(self._ledger.beat())
