"""The driver's side of workers: who is there, what they are told, and who is lost."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from floodplain.clock import Clock, Randomness
from floodplain.errors import Conflict, Unavailable
from floodplain.workers.answers import Answer, Command, WorkerLost
from floodplain.workers.channel import Channel, Credentials, Disconnected
from floodplain.workers.launcher import Launcher
from floodplain.workers.members import MOST_LAUNCHES, Member, missing
from floodplain.workers.messages import (
    Abandon,
    Beat,
    Begin,
    Done,
    End,
    Failed,
    Fenced,
    Made,
    Message,
    Peer,
    Prefetch,
    Prefetched,
    Read,
    Register,
    Run,
    Welcome,
)
from floodplain.workers.prefetching import Prefetches
from floodplain.workers.reception import Reception
from floodplain.workers.requests import Requests

SILENT_S = 3.0
"""A worker of which nothing was heard for so long is lost, unless the query has another limit."""
BEAT_S = 1.0
"""Between two signs of life of the coordinator."""
LOOK_S = 0.25
IDLE_S = 1.0
"""At the end: how long a worker may go on with a try that was given up, before it is ended in the middle of it."""
PATIENCE_S = 0.1
"""How long a message that a worker must get may wait for another one that is being sent."""
PAUSED_S = 1.0
"""A look that comes so late was late because this process was stopped: workers are not to blame for that."""

_log = logging.getLogger(__name__)


class Coordinator:
    """Accepts workers, sends commands, gathers answers, and has lost workers launched again. One thread asks; others listen."""

    def __init__(
        self,
        credentials: Credentials,
        address: tuple[str, int],
        clock: Clock,
        randomness: Randomness,
        silent_s: float = SILENT_S,
    ) -> None:
        """``address``: where to listen; port 0 is any that is free. ``silent_s``: a worker that is silent for longer is lost."""
        self._clock, self._silent_s = clock, silent_s
        self._changed = threading.Condition()
        self._members: dict[int, Member] = {}
        self._requests = Requests()
        self._prefetches = Prefetches(clock)
        self._fenced: dict[Channel, tuple[int, int]] = {}
        """Processes without a place → the worker and the launch that they are duplicates of."""
        self._number = 0
        self._launcher: Launcher | None = None
        self._closing = threading.Event()
        self._given_up = False
        self.losses = 0
        """Workers that were lost since the query started."""
        self._reception = Reception(address, credentials, randomness, self._receive)
        threading.Thread(target=self._watch, name="floodplain-coordinator", daemon=True).start()

    @property
    def port(self) -> int:
        return self._reception.port

    def launch(self, launcher: Launcher, workers: int) -> None:
        """Have so many workers launched, and launched again when they are lost."""
        self._launcher = launcher
        with self._changed:
            self._members = {worker: Member(launched_s=self._clock.monotonic_s()) for worker in range(workers)}
        for worker in range(workers):
            self._launch(worker, 0)

    def await_one(self, seconds: float) -> bool:
        """Wait until a worker has registered; whether one has. Raises ``FloodplainError`` if none can be launched."""
        until_s = self._clock.monotonic_s() + seconds
        with self._changed:
            while not self.present():
                self._check_given_up()
                self._check_launches()
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, LOOK_S))
        return True

    def give_up(self) -> None:
        """The query ends, and its running epoch with it: no answer is waited for any more. For any thread."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def _check_given_up(self) -> None:
        if self._given_up:
            raise Conflict("the query ends, so what its workers do is not waited for")

    def _check_launches(self) -> None:
        failed = [member for member in self._members.values() if member.failed_launches >= MOST_LAUNCHES]
        if failed and len(failed) == len(self._members):
            raise Unavailable(f"no worker can be started: {failed[0].failure or 'they end before they have registered'}")

    def present(self) -> dict[int, Peer]:
        """The workers that are registered, and where others reach them."""
        with self._changed:
            return {
                worker: member.peer
                for worker, member in self._members.items()
                if member.channel is not None and member.peer is not None
            }

    @property
    def pids(self) -> dict[int, int]:
        """Of registered workers, the process."""
        with self._changed:
            return {worker: member.pid for worker, member in self._members.items() if member.channel is not None}

    def concern(self) -> str | None:
        """That workers have waited for a core for long, of which Spark says nothing. None if all is well."""
        with self._changed:
            return missing(list(self._members.values()), self._clock.monotonic_s())

    def next_id(self) -> int:
        self._number += 1
        return self._number

    def ask(self, commands: Sequence[tuple[int, Command]]) -> dict[int, Answer]:
        """Send each command to its worker, and wait for all answers, by the number of the command, or until one has failed.

        Raises ``WorkerLost`` as soon as one of the workers is lost, and ``Conflict`` once ``give_up`` was called.
        """
        with self._changed:
            self._requests.begin(commands)
        for worker, command in commands:
            self._tell(worker, command)
        with self._changed:
            while (answers := self._requests.result()) is None:
                self._check_given_up()
                self._changed.wait(LOOK_S)
            return answers

    def tell_all(self, message: Message) -> None:
        """Send it to all that are registered. A worker that is lost meanwhile is taken for lost."""
        for worker in self.present():
            with suppress(WorkerLost):
                self._tell(worker, message)

    def _tell(self, worker: int, message: Message) -> None:
        with self._changed:
            member = self._members.get(worker)
            channel = None if member is None else member.channel
        if member is None or channel is None:
            raise WorkerLost(f"worker {worker} is not there", worker)
        try:
            channel.send(message)
        except Disconnected as error:
            self._lose(worker, channel, f"its connection broke ({error})")
            raise WorkerLost(f"worker {worker} is lost: {error}", worker) from error
        if isinstance(message, Begin | Read | Run):
            with self._changed:
                member.sent = max(member.sent, message.id)

    def prefetch(self, orders: Callable[[int], Mapping[int, Prefetch]]) -> bool:
        """As ``Prefetches.ask``. For another thread than the one that asks."""
        return self._prefetches.ask(orders, self._tell)

    def abandon(self, nonce: str) -> None:
        """The try is given up. Workers drop what belongs to it and do not begin what is left of it."""
        self.tell_all(Abandon(nonce))

    def lose(self, workers: Iterable[int], why: str) -> None:
        """Give these workers up, whatever they do, and have others launched in their places."""
        for worker in workers:
            with self._changed:
                member = self._members[worker]
                channel = member.channel
            if channel is not None:
                _insist(channel, End(at_once=True))
                self._lose(worker, channel, why)

    def renew(self, seconds: float) -> None:
        """End all workers and have them launched again, with what the launcher gives them by now. Requires: nothing is requested
        of them. Waits until as many have registered as there were, but no longer than this."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            before = [(worker, member.job, member.channel) for worker, member in self._members.items()]
            duplicates = list(self._fenced)
            for worker, member in self._members.items():
                self._vacate(worker, member, "the query is updated")
                member.relaunched(member.job + 1, now_s)
        for channel in [*duplicates, *(channel for _, _, channel in before if channel is not None)]:
            _insist(channel, End())
        for worker, job, former in before:
            if former is None:
                self._cancel(worker, job)
            self._launch(worker, job + 1)
        if not self._await_present(sum(former is not None for _, _, former in before), now_s + seconds):
            for worker, job, _ in before:  # one that does not end by itself keeps its core from the next
                self._cancel(worker, job)

    def _cancel(self, worker: int, job: int) -> None:
        if self._launcher is not None:
            self._launcher.cancel(worker, job)

    def _await_present(self, workers: int, until_s: float) -> bool:
        with self._changed:
            while len(self.present()) < workers and not self._given_up:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, LOOK_S))
        return True

    def await_idle(self, seconds: float) -> set[int]:
        """Wait until no registered worker owes an answer. Returns those that still do after so long."""
        until_s = self._clock.monotonic_s() + seconds
        with self._changed:
            while owing := self._owing():
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, LOOK_S))
            return owing

    def _owing(self) -> set[int]:
        there = [worker for worker, member in self._members.items() if member.channel is not None]
        return {worker for worker in there if self._requests.owed_by(worker)}

    def launch_ended(self, worker: int, job: int, error: str) -> None:
        """The launcher says that this launch is over. ``error``: why, if it did not end well."""
        with self._changed:
            member = self._members.get(worker)
            if self._closing.is_set() or member is None or member.job != job or self._launcher is None:
                return
            channel = member.channel
            if channel is None:
                member.failed_launches += 1
                member.failure = error
            self._changed.notify_all()
        if channel is not None:
            self._lose(worker, channel, error or "its task ended")
        elif member.failed_launches < MOST_LAUNCHES:
            self._relaunch(worker, job)

    def close(self) -> None:
        """Tell all workers that the query is over; those in the middle of a command end at once. Those that do not listen end by
        themselves."""
        self._prefetches.close()
        left = self.await_idle(IDLE_S)
        self._closing.set()
        with self._changed:
            busy = {self._members[worker].channel for worker in left}
            channels = self._channels()
        for channel in channels:
            _insist(channel, End(at_once=channel in busy))
        self._reception.close()

    def disconnect(self) -> None:
        """Close what is still open. Workers that are in the middle of something end at once."""
        with self._changed:
            channels = self._channels()
        for channel in channels:
            channel.close()

    def _channels(self) -> list[Channel]:
        return [*self._fenced, *(member.channel for member in self._members.values() if member.channel is not None)]

    def _receive(self, message: Message, channel: Channel) -> None:
        if isinstance(message, Register) and self._register(message, channel):
            self._listen(message.peer.worker, channel)
        else:
            channel.offer(End())

    def _register(self, message: Register, channel: Channel) -> bool:
        """Give this process its worker's place, which that of the newest attempt at the newest launch has, or fence it off.

        False if there is nothing to wait for: its launch is not the newest, or the query is over.
        """
        worker = message.peer.worker
        with self._changed:
            if self._closing.is_set():  # those that ``close`` tells of the end are all that have registered
                return False
            member = self._members.get(worker)
            if member is None or message.job != member.job:
                return False
            if message.attempt <= member.attempt:
                channel.send(Fenced())
                self._fenced[channel] = worker, member.job
                return True
            self._fence(worker, member)
            channel.send(Welcome())
            member.welcome(channel, message, self._clock.monotonic_s())
            self._changed.notify_all()
        return True

    def _fence(self, worker: int, member: Member) -> None:
        """A newer attempt takes this place. The older one must not return: Spark would take the task for done and end the newer.

        Requires: the lock is held.
        """
        channel = self._vacate(worker, member, "another attempt at it has registered")
        if channel is None:
            return
        self._fenced[channel] = worker, member.job
        _insist(channel, Fenced())

    def _listen(self, worker: int, channel: Channel) -> None:
        try:
            while True:
                message, _ = channel.receive()
                with self._changed:
                    member = self._members[worker]
                    if member.channel is channel:
                        member.heard_s = self._clock.monotonic_s()
                        self._take(worker, message)
        except Disconnected as error:
            self._lose(worker, channel, f"its connection broke ({error})")
        finally:
            with self._changed:
                self._fenced.pop(channel, None)

    def _take(self, worker: int, message: Message) -> None:
        """Requires: the lock is held."""
        match message:
            case Made() | Done() | Failed():
                self._requests.take(worker, message)
            case Beat():
                self._requests.compare(worker, message)
            case Prefetched():
                self._prefetches.take(worker, message)
        self._changed.notify_all()

    def _watch(self) -> None:
        """Waits for nothing that a worker does: it is what finds out that one does nothing."""
        looked_s = beaten_s = self._clock.monotonic_s()
        warned = False
        while not self._closing.wait(LOOK_S):
            now_s = self._clock.monotonic_s()
            concern = self.concern()
            if concern is not None and not warned:
                _log.warning("%s", concern)
            warned = concern is not None
            with self._changed:
                if now_s - looked_s > PAUSED_S:
                    self._excuse(now_s - looked_s, now_s)
                silent = [
                    (worker, member.channel)
                    for worker, member in self._members.items()
                    if member.channel is not None and now_s - member.heard_s > self._silent_s
                ]
            looked_s = now_s
            for worker, channel in silent:
                assert channel is not None
                self._lose(worker, channel, f"nothing was heard of it for {self._silent_s:g} s")
            if now_s - beaten_s >= BEAT_S:
                beaten_s = now_s
                self._beat()

    def _excuse(self, seconds: float, now_s: float) -> None:
        """This process itself was stopped for so long. Requires: the lock is held."""
        for member in self._members.values():
            member.heard_s = min(member.heard_s + seconds, now_s)

    def _beat(self) -> None:
        with self._changed:
            beats = [(channel, Beat()) for channel in self._fenced]
            beats += [(member.channel, Beat(member.sent)) for member in self._members.values() if member.channel is not None]
        for channel, beat in beats:
            with suppress(Disconnected):
                channel.offer(beat)

    def _lose(self, worker: int, channel: Channel, why: str) -> None:
        with self._changed:
            member = self._members[worker]
            if member.channel is not channel or self._closing.is_set():
                return
            self._vacate(worker, member, why)
            job = member.job
            self.losses += 1
        channel.close()
        _log.warning("worker %s is lost: %s; another is started in its place", worker, why)
        self._relaunch(worker, job)

    def _vacate(self, worker: int, member: Member, why: str) -> Channel | None:
        """What was requested of the process that has this place is lost. Returns its connection. Requires: the lock is held."""
        channel, member.channel = member.channel, None
        self._requests.lose(worker, why)
        self._prefetches.lose(worker)
        self._changed.notify_all()
        return channel

    def _relaunch(self, worker: int, job: int) -> None:
        with self._changed:
            member = self._members[worker]
            if self._closing.is_set() or member.job != job or self._launcher is None:
                return
            member.relaunched(job + 1, self._clock.monotonic_s())
            duplicates = [channel for channel, launch in self._fenced.items() if launch == (worker, job)]
        for channel in duplicates:
            _insist(channel, End(at_once=True))
        self._launcher.cancel(worker, job)
        self._launch(worker, job + 1)

    def _launch(self, worker: int, job: int) -> None:
        assert self._launcher is not None
        try:
            self._launcher.launch(worker, job)
        except Exception as error:
            _log.exception("worker %s cannot be launched", worker)
            self.launch_ended(worker, job, f"{type(error).__name__}: {error}")


def _insist(channel: Channel, message: Message) -> None:
    """Tell a worker what it must know. One that cannot be told is cut off, and ends by itself."""
    try:
        sent = channel.offer(message, PATIENCE_S)
    except Disconnected:
        return
    if not sent:
        channel.close()
