"""A blob layer that lies, a disk that is full, clocks that disagree: writers go on, or say why not, and nothing is lost by it."""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from unittest import mock

from floodplain.clock import ManualClock
from floodplain.errors import AlreadyExists, Conflict, FloodplainError, SnapshotExpired, Unavailable
from floodplain.runtime.lease_takeover import take_over
from floodplain.store.store import Writer
from floodplain.tiers import directory
from floodplain.tiers.blobs import Blobs, Data
from tests.faults import WRITES, FaultyBlobs, Op, Plan
from tests.soak import scenes
from tests.soak.outcome import Trial
from tests.store.scene import START_MS, Scene

ROUNDS = 8
DAY_MS = 86_400_000
LIE = "a lie of the test"


class Lies(Plan):
    """Answers that are not true, one in so many. A request that timed out may have done its work, or do it later.

    Which ones lie follows from what is asked and how often it was, so threads may ask in any order.
    """

    def __init__(self, trial: Trial, share: float) -> None:
        self._salt, self._share = trial.rng.randrange(1 << 30), share
        self._asked: Counter[tuple[str, str]] = Counter()
        self._late: list[tuple[int, Callable[[], None]]] = []
        self.active = trial.faulty
        self.told = 0

    def before(self, op: Op) -> None:
        due = [act for at, act in self._late if at <= op.index]
        self._late = [(at, act) for at, act in self._late if at > op.index]
        for act in due:
            act()
        if self.lie(f"before {op.method}", op.name):
            raise Unavailable(f"throttled or timed out: {op.method} {op.name} ({LIE})")

    def after(self, op: Op) -> None:
        drawn = self.lie(f"after {op.method}", op.name) if op.method in WRITES else None
        if drawn and op.method == "create" and drawn.random() < 0.5:
            raise AlreadyExists(f"{op.name} exists: the client sent it twice ({LIE})")
        if drawn:
            raise Unavailable(f"no answer: {op.method} {op.name}, which was done ({LIE})")

    def lie(self, what: str, name: str) -> random.Random | None:
        """None to tell the truth, else what to draw the kind of lie from."""
        self._asked[what, name] += 1
        drawn = random.Random(f"{self._salt}/{what}/{name}/{self._asked[what, name]}")
        if not self.active or drawn.random() >= self._share:
            return None
        self.told += 1
        return drawn

    def land_later(self, index: int, act: Callable[[], None]) -> None:
        """Before the operation of this number."""
        self._late.append((index, act))


class LateBlobs(FaultyBlobs):
    """Some requests to create fail, and are carried out some operations later, behind others."""

    plan: Lies

    def create(self, name: str, data: Data) -> None:
        drawn = self.plan.lie("late create", name)
        if drawn:
            self.plan.land_later(len(self.ops) + drawn.randrange(1, 40), partial(self._land, name, data))
            raise Unavailable(f"no answer: create {name}, which lands later ({LIE})")
        super().create(name, data)

    def _land(self, name: str, data: Data) -> None:
        with suppress(AlreadyExists):
            self.inner.create(name, data)


def lie(trial: Trial) -> None:
    """Lost acknowledgements, timeouts, duplicates, requests that land late, throttling: at any operation."""
    scene, blobs = scenes.any_scene(trial)
    lies = Lies(trial, trial.rng.choice((0.02, 0.05, 0.1)))
    faulty, told = LateBlobs(blobs, lies), [scenes.FIRST]
    writer: Writer | None = None
    for _ in range(ROUNDS):
        try:
            writer = writer or scene.take(faulty)
            _work(trial, scene, writer, told)
        except FloodplainError as error:
            _clear(trial, error)
            writer = None
    trial.note(f"{lies.told} lies in {len(faulty.ops)} operations")
    lies.active = False
    _go_on(trial, scene, faulty, told)


def _clear(trial: Trial, error: FloodplainError) -> None:
    """Errors that may follow from the lies: those that say so, and giving up to whoever came first, be it oneself."""
    clear = isinstance(error, Conflict) or LIE in f"{error} {error.__cause__} {error.__context__}"
    if not clear:
        raise error


def _work(trial: Trial, scene: Scene, writer: Writer, told: list[int]) -> None:
    """An epoch, and perhaps some housekeeping."""
    told.append(scene.commit(writer))
    kind = trial.rng.random()
    if kind < 0.3:
        list(writer.store.compact(full=trial.rng.random() < 0.5, step_bytes=20_000))
    elif kind < 0.6:
        writer.collect_garbage()


def _go_on(trial: Trial, scene: Scene, blobs: Blobs, told: Sequence[int]) -> None:
    """Once the fault is over: another writer goes on, and all is as it should be."""
    scenes.compare(trial, scene, blobs, told)
    writer = scene.take(blobs)
    after = [*told, scene.commit(writer)]
    writer.collect_garbage()
    scenes.compare(trial, scene, blobs, after)
    scene.check_clean(blobs)


@dataclass
class Disk:
    """So many bytes may still be written to files of a store; then none, as on a full disk."""

    left: float = float("inf")

    @contextmanager
    def mounted(self) -> Iterator[None]:
        real = directory.write_all

        def write_all(fd: int, views: Sequence[memoryview]) -> None:
            wanted = sum(map(len, views))
            if wanted > self.left:
                os.write(fd, b"".join(views)[: int(self.left)])
                self.left = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= wanted
            real(fd, views)

        with mock.patch.object(directory, "write_all", write_all):
            yield


def fill_disk(trial: Trial) -> None:
    """The disk fills up at any byte of any write, again and again; space returns, and the writer or the next one goes on."""
    scene, made = scenes.any_scene(trial)
    blobs, disk, told = scenes.in_directory(made, trial.folder / "state"), Disk(), [scenes.FIRST]
    writer: Writer | None = None
    with disk.mounted():
        for _ in range(ROUNDS):
            disk.left = trial.rng.choice((0, 100, trial.rng.randrange(40_000))) if trial.faulty else float("inf")
            trial.note(f"room for {disk.left:.0f} bytes at epoch {len(told)}")
            with trial.may_refuse("free some space"):
                writer = writer or scene.take(blobs)
                _work(trial, scene, writer, told)
                continue
            writer = writer if trial.rng.random() < 0.5 else None
        disk.left = float("inf")
        _go_on(trial, scene, blobs, told)


def skew_clocks(trial: Trial) -> None:
    """Processes whose clocks are up to two days apart, some of which jump: they take the lease from each other, pin, compact and
    collect."""
    scene, blobs = scenes.any_scene(trial)
    told = [scenes.FIRST]
    clocks = [ManualClock(START_MS + (trial.rng.randrange(-2 * DAY_MS, 2 * DAY_MS) if trial.faulty else 0)) for _ in range(3)]
    trial.note(f"clocks at {[(clock.now_ms() - START_MS) // 1000 for clock in clocks]} s")
    for number in range(ROUNDS):
        scene.clock = trial.rng.choice(clocks)
        if trial.faulty and trial.rng.random() < 0.3:
            scene.clock = clocks[trial.rng.randrange(3)] = ManualClock(START_MS + trial.rng.randrange(-DAY_MS, DAY_MS))
        writer = take_over(scene.open(blobs), f"w{number}", force=trial.rng.random() < 0.3)
        _read(trial, scene, blobs)
        _work(trial, scene, writer, told)
    _go_on(trial, scene, blobs, told)


def _read(trial: Trial, scene: Scene, blobs: Blobs) -> None:
    """As a reader elsewhere does: what it pinned stays, or it is told that it has expired."""
    try:
        with scene.open(blobs).snapshot(pinned=True) as snapshot:
            scenes._compare_tables(trial, scene, snapshot)
    except SnapshotExpired:
        return
