"""A proxy between coordinator and workers that loses, doubles or holds back messages."""

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from floodplain.workers.channel import Channel, Disconnected
from floodplain.workers.messages import Begin, Done, Failed, Made, Read, Run


@dataclass
class Plan:
    """What becomes of answers, or of commands to workers."""

    nth: int = 0
    to_worker: bool = False
    met: int = field(default=0, repr=False)
    _count: int = field(default=0, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def passed(self, message, *, to_worker):
        """What is sent in place of a message."""
        kinds = (Begin, Read, Run) if self.to_worker else (Made, Done, Failed)
        with self._lock:
            if to_worker != self.to_worker or not isinstance(message, kinds):
                return [message]
            self._count += 1
            return self._of(message)

    def _of(self, message):
        raise NotImplementedError


class Dropped(Plan):
    """The nth gets lost."""

    def _of(self, message):
        if self._count != self.nth:
            return [message]
        self.met += 1
        return []


class Doubled(Plan):
    """Each comes twice."""

    def _of(self, message):
        self.met += 1
        return [message, message]


class Delayed(Plan):
    """The nth comes after the next, which is one of another try: its own has been given up by then."""

    _held = None

    def _of(self, message):
        if self._count == self.nth:
            self._held = message
            return []
        late, self._held = self._held, None
        if late is None:
            return [message]
        self.met += 1
        return [message, late, late]


class FrameProxy:
    """Listens in place of the coordinator."""

    def __init__(self, port, plan):
        self._target, self._plan = ("127.0.0.1", port), plan
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self):
        while True:
            try:
                worker, _ = self._listening.accept()
                coordinator = socket.create_connection(self._target)
            except OSError:
                return
            threading.Thread(target=self._connect, args=(worker, coordinator), daemon=True).start()

    def _connect(self, worker, coordinator):
        """The two prove themselves to each other; after that there are frames."""
        with suppress(OSError):
            worker.sendall(coordinator.recv(32, socket.MSG_WAITALL))
            coordinator.sendall(worker.recv(64, socket.MSG_WAITALL))
            worker.sendall(coordinator.recv(32, socket.MSG_WAITALL))
        ends = Channel(worker), Channel(coordinator)
        for source, target, to_worker in ((ends[0], ends[1], False), (ends[1], ends[0], True)):
            threading.Thread(target=self._carry, args=(source, target, to_worker), daemon=True).start()

    def _carry(self, source, target, to_worker):
        with suppress(Disconnected):
            while True:
                message, data = source.receive()
                for each in self._plan.passed(message, to_worker=to_worker):
                    target.send(each, [data])
        source.close()
        target.close()
