"""Deterministic faults for anything that works on blobs: crashes, false answers, and other actors stepping in between.

Every blob operation has a number. A plan says what happens before or after the operation of some number, so a test can try
all of them in turn. A ``delete`` of several names counts as one operation each: a crash may fall between them.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import pyarrow as pa

from floodplain.errors import AlreadyExists, NotFound, Unavailable
from floodplain.metrics import Counters
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range
from floodplain.tiers.memory import MemoryBlobs

When = Literal["before", "after"]
Result = TypeVar("Result")
WRITES = frozenset({"create", "put", "delete"})


class Crash(BaseException):
    """The process ends here: not an ``Exception``, so nothing that handles errors can go on."""


@dataclass(frozen=True)
class Op:
    index: int
    method: str
    name: str


class Plan:
    """Nothing happens. Others override what they need; whatever they raise goes to the caller of the operation."""

    def before(self, op: Op) -> None: ...

    def after(self, op: Op) -> None: ...

    def carried(self, op: Op, act: Callable[[], Result]) -> Result:
        """What the operation itself returns or raises."""
        return act()


@dataclass
class At(Plan):
    """Run ``action`` at one operation: another actor's step, or ``raise``. A write that is to fail *after* has happened."""

    index: int
    when: When
    action: Callable[[], object]

    def before(self, op: Op) -> None:
        if op.index == self.index and self.when == "before":
            self.action()

    def after(self, op: Op) -> None:
        if op.index == self.index and self.when == "after":
            self.action()


@dataclass
class Answers(Plan):
    """False answers to the first operations that ``method`` and ``name`` match, one after the other; None answers truly."""

    method: str
    prefix: str
    answers: Sequence[tuple[When, Exception] | None]
    given: int = field(default=0, init=False)

    def before(self, op: Op) -> None:
        if self._next(op) == "before":
            self._give()

    def after(self, op: Op) -> None:
        if self._next(op) == "after":
            self._give()
        elif self._matches(op):
            self.given += 1

    def _matches(self, op: Op) -> bool:
        return op.method == self.method and op.name.startswith(self.prefix)

    def _next(self, op: Op) -> When | None:
        if not self._matches(op) or self.given >= len(self.answers):
            return None
        answer = self.answers[self.given]
        return answer[0] if answer else None

    def _give(self) -> None:
        answer = self.answers[self.given]
        assert answer is not None
        self.given += 1
        raise answer[1]


class FaultyBlobs(Blobs):
    """``inner`` with faults. After a ``Crash`` every further operation crashes too: clean-up code of a dead process."""

    def __init__(self, inner: Blobs, plan: Plan | None = None) -> None:
        self.inner = inner
        self.plan = plan or Plan()
        self.tier, self.url, self.answers_at_once = inner.tier, inner.url, inner.answers_at_once
        self.ops: list[Op] = []
        self.dead = False
        self._lock = threading.Lock()

    def create(self, name: str, data: Data) -> None:
        self._run("create", name, lambda: self.inner.create(name, data))

    def put(self, name: str, data: Data) -> None:
        self._run("put", name, lambda: self.inner.put(name, data))

    def get(self, name: str) -> pa.Buffer:
        return self._run("get", name, lambda: self.inner.get(name))

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        return self._run("get_ranges", name, lambda: self.inner.get_ranges(name, ranges))

    def map(self, name: str) -> pa.Buffer | None:
        return self._run("map", name, lambda: self.inner.map(name))

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        yield from self._run("list", prefix, lambda: [*self.inner.list(prefix, after)])

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._run("delete", name, lambda name=name: self.inner.delete([name]))

    def size(self, name: str) -> int:
        return self._run("size", name, lambda: self.inner.size(name))

    def modified_ms(self, name: str) -> int | None:
        return self._run("modified_ms", name, lambda: self.inner.modified_ms(name))

    def close(self) -> None:
        self.inner.close()

    def _run(self, method: str, name: str, act: Callable[[], Result]) -> Result:
        with self._lock:
            if self.dead:
                raise Crash
            op = Op(len(self.ops), method, name)
            self.ops.append(op)
        try:
            self.plan.before(op)
            try:
                result = self.plan.carried(op, act)
            except NotFound:
                self.plan.after(op)
                raise
            self.plan.after(op)
        except Crash:
            self.dead = True
            raise
        return result


def crash() -> None:
    raise Crash


def clone(blobs: Blobs) -> MemoryBlobs:
    """A copy in memory, to try many futures of one store."""
    copy = MemoryBlobs(blobs.url, Counters())
    for info in blobs.list(""):
        copy.create(info.name, blobs.get(info.name))
    return copy


def contents(blobs: Blobs) -> dict[str, bytes]:
    return {info.name: blobs.get(info.name).to_pybytes() for info in blobs.list("")}


def operations(blobs: Blobs, act: Callable[[Blobs], object]) -> list[Op]:
    """The operations ``act`` needs on a copy of ``blobs`` when nothing goes wrong."""
    faulty = FaultyBlobs(clone(blobs))
    act(faulty)
    return faulty.ops


def crash_points(ops: Sequence[Op], *, every_op: bool = False) -> list[tuple[int, When]]:
    """Where crashes leave different blobs: before each write, and after the last one. With ``every_op``: everywhere."""
    if every_op:
        return [(op.index, when) for op in ops for when in ("before", "after")]
    writes = [op.index for op in ops if op.method in WRITES]
    return [*((index, "before") for index in writes), *((index, "after") for index in writes[-1:])]


def crashed(blobs: Blobs, act: Callable[[Blobs], object], *, every_op: bool = False) -> Iterator[tuple[str, MemoryBlobs]]:
    """For each point where ``act`` may crash: a label, and what a copy of ``blobs`` then holds.

    Requires: ``act`` does the same operations on equal blobs.
    """
    ops = operations(blobs, act)
    for index, when in crash_points(ops, every_op=every_op):
        copy = clone(blobs)
        faulty = FaultyBlobs(copy, At(index, when, crash))
        try:
            act(faulty)
        except Crash:
            yield f"crash {when} {ops[index].method} {ops[index].name} (operation {index})", copy
        else:
            raise AssertionError(f"operation {index} was not reached")


def interleaved(
    blobs: Blobs, act: Callable[[Blobs], Result], other: Callable[[Blobs], object]
) -> Iterator[tuple[str, MemoryBlobs, Result | Exception]]:
    """``other`` runs in full before each operation of ``act``, and after the last; a label, the blobs, what ``act`` came to."""
    ops = operations(blobs, act)
    points: list[tuple[Op, When]] = [(op, "before") for op in ops] + [(ops[-1], "after")]
    for op, when in points:
        copy = clone(blobs)

        def step(copy: MemoryBlobs = copy) -> None:
            other(copy)

        faulty = FaultyBlobs(copy, At(op.index, when, step))
        result: Result | Exception
        try:
            result = act(faulty)
        except Exception as error:
            result = error
        yield f"other {when} {op.method} {op.name} (operation {op.index})", copy, result


def remembered(other: Callable[[Blobs], object]) -> Callable[[Blobs], None]:
    """``other``, which runs once for each content that it meets; met again, its result is put in place.

    Requires: what it does depends on the blobs alone.
    """
    results: list[tuple[dict[str, bytes], dict[str, bytes]]] = []

    def act(blobs: Blobs) -> None:
        before = contents(blobs)
        after = next((after for known, after in results if known == before), None)
        if after is None:
            other(blobs)
            results.append((before, contents(blobs)))
            return
        blobs.delete(sorted(before.keys() - after.keys()))
        for name, data in after.items():
            if before.get(name) != data:
                blobs.put(name, data)

    return act


class Network:
    """Loses requests and answers with probability ``losses``, and delivers some writes late: long after the caller gave them up,
    or never."""

    def __init__(self, rng: random.Random, losses: float) -> None:
        self._rng, self._losses = rng, losses
        self._late: list[Callable[[], object]] = []

    def carried(self, op: Op, act: Callable[[], Result]) -> Result:
        if not self._losses or self._rng.random() >= self._losses:
            return act()
        fate = self._rng.choice(("request lost", "answer lost", "late", "late"))
        if fate == "answer lost":
            act()
        elif fate == "late" and op.method in WRITES:
            self._late.append(act)
        raise Unavailable(f"{fate}: {op.method} {op.name}")

    def deliver(self, chance: float) -> None:
        for act in [act for act in self._late if self._rng.random() < chance]:
            self._late.remove(act)
            with suppress(AlreadyExists):
                act()


class Turns(Plan):
    """Lets one actor run at a time, from one blob operation to the next."""

    def __init__(self, crash_at: int | None, network: Network) -> None:
        self.carried = network.carried  # type: ignore[method-assign]
        self.crash_at = crash_at
        self.done = False
        self.granted = threading.Semaphore(0)
        self.paused = threading.Semaphore(0)

    def before(self, op: Op) -> None:
        self.pause()
        if op.index == self.crash_at:
            raise Crash

    def pause(self) -> None:
        self.paused.release()
        self.granted.acquire()

    def run_on(self) -> None:
        """Until the actor's next operation, or its end."""
        self.granted.release()
        self.paused.acquire()


def simulate(
    blobs: Blobs,
    actors: Sequence[Callable[[Blobs], object]],
    rng: random.Random,
    crashes: float = 0.0,
    losses: float = 0.0,
) -> list[object]:
    """Run the actors to their ends, switching at random between any two blob operations; what each returned or raised.

    The same seed gives the same schedule. Requires: an actor uses its blobs from one thread. Each crashes with probability
    ``crashes``, somewhere; each request, or its answer, is lost with probability ``losses``, or arrives at any later time.
    """
    network = Network(rng, losses)
    turns = [Turns(rng.randrange(60) if rng.random() < crashes else None, network) for _ in actors]
    results: list[object] = [None] * len(actors)

    def work(number: int) -> None:
        turn = turns[number]
        turn.granted.acquire()
        try:
            results[number] = actors[number](FaultyBlobs(blobs, turn))
        except BaseException as error:
            results[number] = error
        turn.done = True
        turn.paused.release()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(actors))]
    for thread in threads:
        thread.start()
    while running := [turn for turn in turns if not turn.done]:
        favourite = rng.choice(running)
        for _ in range(rng.choice((1, 1, 2, 5, 20, 100))):
            if not favourite.done:
                favourite.run_on()
        network.deliver(0.05)
    for thread in threads:
        thread.join()
    network.deliver(0.5)
    return results
