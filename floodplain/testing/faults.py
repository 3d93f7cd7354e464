"""Crashes for the test kit: every write to the state and every publishing of output is a step that can be the last one."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from floodplain.plan.nodes import Plan
from floodplain.sinks.base import Sink
from floodplain.sinks.row_checks import RowCheck
from floodplain.sinks.staged import read_staged
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable
from floodplain.versions.log.history import History

When = Literal["before", "after"]


class Crashed(BaseException):
    """The process ends here: not an ``Exception``, so nothing that handles errors can go on."""


@dataclass(frozen=True)
class CrashPoint:
    """Right before or after one step, by number."""

    step: int
    when: When


def crash() -> None:
    """The action of a step that kills the process."""
    raise Crashed


class Steps:
    """Counts steps over all lives of a kit, and does what is planned for some of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """As if none had been taken, and none was planned."""
        self.taken: list[str] = []
        self._planned: dict[CrashPoint, Callable[[], object]] = {}
        self._dead = False

    def plan(self, point: CrashPoint, action: Callable[[], object] = crash) -> None:
        self._planned[point] = action

    def revive(self) -> None:
        self._dead = False

    def take(self, name: str, act: Callable[[], Any]) -> Any:
        if self._dead:
            raise Crashed
        with self._lock:  # a task writes from several threads
            number = len(self.taken)
            self.taken.append(name)
        self._reach(number, "before")
        result = act()
        self._reach(number, "after")
        return result

    def _reach(self, number: int, when: When) -> None:
        try:
            self._planned.get(CrashPoint(number, when), lambda: None)()
        except Crashed:
            self._dead = True
            raise


class CountedBlobs(Blobs):
    """Blobs whose writes are steps. A delete of several is a step for each."""

    def __init__(self, inner: Blobs, steps: Steps) -> None:
        self._inner, self._steps = inner, steps
        self.tier, self.url = inner.tier, inner.url

    def create(self, name: str, data: Writable) -> None:
        self._steps.take(f"create {name}", lambda: self._inner.create(name, data))

    def put(self, name: str, data: Data) -> None:
        self._steps.take(f"put {name}", lambda: self._inner.put(name, data))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._steps.take(f"delete {name}", partial(self._inner.delete, [name]))

    def get(self, name: str) -> pa.Buffer:
        return self._inner.get(name)

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        return self._inner.get_ranges(name, ranges)

    def map(self, name: str) -> pa.Buffer | None:
        return self._inner.map(name)

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        return self._inner.list(prefix, after)

    def size(self, name: str) -> int:
        return self._inner.size(name)

    def modified_ms(self, name: str) -> int | None:
        return self._inner.modified_ms(name)


class Captured(Sink):
    """The world outside: keeps what was published, over all lives of the pipeline.

    An epoch may be published again, but never with other rows.
    """

    def __init__(self, name: str, steps: Steps) -> None:
        self._name, self._steps = name, steps
        self.epochs: dict[int, pa.Table] = {}

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        rows = read_staged(staged, blobs, schema)

        def keep() -> None:
            # By what they print: NaN is not equal to itself.
            if epoch in self.epochs and repr(self.epochs[epoch].to_pylist()) != repr(rows.to_pylist()):
                raise AssertionError(f"epoch {epoch} of {self._name} was published twice, with different rows")
            self.epochs[epoch] = rows

        self._steps.take(f"publish {self._name} {epoch}", keep)


class Witnessed(Sink):
    """A sink as one driver has it. Raises ``AssertionError`` if that driver publishes what is not committed or, on beginning to
    publish an epoch, no longer holds the lease."""

    def __init__(self, inner: Sink, log: History, token: int | None) -> None:
        """``log``: as somebody else reads it. ``token``: the driver's lease; None for all sinks but the first, because a driver
        looks at its lease once for all of them."""
        self._inner, self._log, self._token = inner, log, token

    @property
    def kind(self) -> str:
        return self._inner.kind

    @property
    def target(self) -> str:
        return self._inner.target

    def check(self, schema: pa.Schema) -> None:
        self._inner.check(schema)

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self._inner.prepare(app, committed, schema)

    def row_check(self, schema: pa.Schema) -> RowCheck | None:
        return self._inner.row_check(schema)

    def close(self) -> None:
        self._inner.close()

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        head = self._log.refresh()
        if epoch > head.epoch:
            raise AssertionError(f"epoch {epoch} is published before it is committed: the log has epochs up to {head.epoch}")
        if self._token not in (None, head.lease.token):
            raise AssertionError(
                f"epoch {epoch} is published under lease {self._token}, which was superseded by lease {head.lease.token}"
            )
        self._inner.publish(epoch, staged, blobs, schema)


def witnessed(plan: Plan, log: History, token: int) -> Plan:
    """The pipeline as a driver with this lease has it, each sink ``Witnessed``."""
    leases = [token, *[None] * len(plan.outlets)]
    outlets = [
        replace(outlet, sink=Witnessed(outlet.sink, log, lease)) for outlet, lease in zip(plan.outlets, leases, strict=False)
    ]
    return Plan(outlets, plan.event_time, plan.watermark)
