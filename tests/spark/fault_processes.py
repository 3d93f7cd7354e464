"""Process functions that can be told to fail, die or wait, and that give every attempt away.

Each call makes a number used once, a nonce, that goes into the state and into the output. So whatever attempt the state of an
epoch comes from, it can be told whether the output, and what the next operator saw, comes from the same one.
"""

import json
import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from floodplain.errors import Unavailable
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.runtime import task_store
from floodplain.state.descriptors import Map, Value
from floodplain.tiers import paths
from tests.waiting import wait_for

BUCKETS = 8


@dataclass(frozen=True)
class Fault:
    """What happens to an attempt at a task of an operator in an epoch, at its second key or once its files are written.

    It happens to the first attempt that comes there, of the given slot or of any, and leaves a file for each that came.
    """

    folder: str
    """Where attempts leave word; one for each fault."""
    operator: str
    epoch: int
    act: str
    """``raise``, ``exit`` and ``kill`` end the attempt; ``hold`` waits for the file ``release``; ``meet``: two attempts wait for
    each other."""
    slot: int | None = None
    point: str = "key"
    """``key``: state is written for some keys. ``staged``: runs and output are stored, the report is not sent."""

    def arrivals(self) -> list[dict[str, Any]]:
        """Who came, in order: slot, attempt and process ids."""
        return [json.loads(path.read_text()) for path in sorted(Path(self.folder).glob("arrived-*"))]

    def release(self, then: str = "go on") -> None:
        """Let go of the one that is held, to go on or to ``raise``."""
        temp = Path(self.folder, "releasing")
        temp.write_text(then)
        temp.replace(Path(self.folder, "release"))

    def reach(self) -> None:
        """Called by the attempt."""
        number = self._arrive()
        if self.act == "meet" and number <= 2:
            wait_for("the other attempt", lambda: len(self.arrivals()) >= 2)
        elif number == 1 and self.act == "hold":
            released = Path(self.folder, "release")
            wait_for(str(released), released.exists)
            if released.read_text() == "raise":
                raise self._error("told to fail")
        elif number == 1 and self.act == "raise":
            raise self._error("fails once")
        elif number == 1 and self.act == "exit":
            os._exit(1)
        elif number == 1 and self.act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def _error(self) -> type[Exception]:
        """One after which Spark tries again: those of a function itself are final, and a store asks again by itself."""
        return Unavailable if self.point == "key" else RuntimeError

    def _arrive(self) -> int:
        """Leave word; the number of those who did."""
        context: Any = TaskContext.get()
        word = {"slot": context.partitionId(), "attempt": context.taskAttemptId(), "worker": os.getpid()}
        word["executor"] = _parent(os.getppid())
        temp = Path(self.folder, f"arriving-{os.getpid()}-{uuid.uuid4().hex}")
        temp.parent.mkdir(parents=True, exist_ok=True)
        temp.write_text(json.dumps(word))
        number = 1
        while True:
            try:
                os.link(temp, Path(self.folder, f"arrived-{number:03d}"))
            except FileExistsError:
                number += 1
            else:
                temp.unlink()
                return number


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class Faulty(KeyedProcess):
    """Brings faults about. They are those of one operator."""

    def __init__(self, state: str, faults: list[Fault]) -> None:
        self._state = state
        self._faults = faults
        self._keys = 0

    def came_to_key(self, epoch: int) -> None:
        """To be called once per key, after state was written."""
        self._keys += 1
        slot = TaskContext.get().partitionId()
        for fault in self._faults:
            if fault.epoch == epoch and fault.slot in (None, slot):
                if fault.point == "staged" and self._keys == 1:
                    _after_staging(self._state, fault.reach)
                elif fault.point == "key" and self._keys == 2:
                    fault.reach()


def _after_staging(state: str, act: Callable[[], None]) -> None:
    """Call ``act`` once this task has stored its output."""
    blobs: Any = next(place.blobs for (location, _), place in task_store._opened.items() if location == state)
    create = blobs.create

    def create_then_act(name: str, data: Any) -> None:
        create(name, data)
        if name.startswith(paths.STAGED):
            del blobs.create
            act()

    blobs.create = create_then_act


class First(Faulty):
    """Keyed by user."""

    n = Value("long", default=0)
    total = Value("long", default=0)
    nonce = Value("string")
    output = "user string, bucket long, n long, total long, nonce string, epoch long"

    def process(self, key, rows, ctx):
        nonce = uuid.uuid4().hex
        self.n.set(self.n.get() + len(rows))
        self.total.set(self.total.get() + sum(row.amount for row in rows))
        self.nonce.set(nonce)
        self.came_to_key(ctx.epoch)
        yield key.user, int(key.user[1:]) % BUCKETS, self.n.get(), self.total.get(), nonce, ctx.epoch


class Second(Faulty):
    """Keyed by bucket: keeps of each user the nonce that it saw."""

    seen = Map("string", "string")
    rows = Value("long", default=0)
    nonce = Value("string")
    output = "bucket long, user string, upstream string, nonce string, epoch long"

    def process(self, key, rows, ctx):
        nonce = uuid.uuid4().hex
        for row in rows:
            self.seen.put(row.user, row.nonce)
        self.rows.set(self.rows.get() + len(rows))
        self.nonce.set(nonce)
        self.came_to_key(ctx.epoch)
        for row in rows:
            yield key.bucket, row.user, row.nonce, nonce, ctx.epoch
