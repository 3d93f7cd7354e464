"""Fault injection for the test kits: the process can crash before or after each write to the state and each publish to a sink."""

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
    """A simulated crash of the process. A ``BaseException``, so that no error handler swallows it."""


@dataclass(frozen=True)
class CrashPoint:
    """Right before or after one step. ``step``: its number, counted from the first start of the kit."""

    step: int
    when: When


def crash() -> None:
    """The default action at a crash point: kills the process."""
    raise Crashed


class Steps:
    """Counts steps over all restarts of a kit, and runs the actions planned at crash points."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forgets all steps and all planned actions."""
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
    """Blobs whose writes are steps. Deleting several blobs is one step for each."""

    def __init__(self, inner: Blobs, steps: Steps) -> None:
        self._inner, self._steps = inner, steps
        self.tier, self.url, self.answers_at_once = inner.tier, inner.url, inner.answers_at_once
        self.derived = inner.derived

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

    def fetch_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        return self._inner.fetch_ranges(name, ranges)

    def at_hand(self, name: str, ranges: Sequence[Range]) -> list[bool]:
        return self._inner.at_hand(name, ranges)

    def map(self, name: str) -> pa.Buffer | None:
        return self._inner.map(name)

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        return self._inner.list(prefix, after)

    def size(self, name: str) -> int:
        return self._inner.size(name)

    def modified_ms(self, name: str) -> int | None:
        return self._inner.modified_ms(name)


class CapturedSink(Sink):
    """Keeps all published rows in memory, by epoch, over all restarts of the pipeline.

    An epoch may be published again, but only with the same rows.
    """

    def __init__(self, name: str, steps: Steps) -> None:
        self._name, self._steps = name, steps
        self.epochs: dict[int, pa.Table] = {}

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        rows = read_staged(staged, blobs, schema)

        def keep() -> None:
            # Compared by repr, because NaN is not equal to itself.
            if epoch in self.epochs and repr(self.epochs[epoch].to_pylist()) != repr(rows.to_pylist()):
                raise AssertionError(f"epoch {epoch} of {self._name} was published twice, with different rows")
            self.epochs[epoch] = rows

        self._steps.take(f"publish {self._name} {epoch}", keep)


class CheckedSink(Sink):
    """A sink of one driver that checks the order of commit, fencing and publishing.

    Raises ``AssertionError`` if the driver publishes an epoch that is not committed, or begins to publish one after it has lost
    the lease.
    """

    def __init__(self, inner: Sink, log: History, token: int | None) -> None:
        """``log``: a reader of the log apart from the driver's. ``token``: the driver's lease; None for all sinks but the first,
        because a driver checks its lease once per epoch, before the first sink."""
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


def with_checked_sinks(plan: Plan, log: History, token: int) -> Plan:
    """The plan of a driver with this lease, each sink wrapped in a ``CheckedSink``."""
    leases = [token, *[None] * len(plan.outlets)]
    outlets = [
        replace(outlet, sink=CheckedSink(outlet.sink, log, lease)) for outlet, lease in zip(plan.outlets, leases, strict=False)
    ]
    return Plan(outlets, plan.event_time, plan.watermark)
