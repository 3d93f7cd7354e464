"""Clocks that are wrong: no row expires and no timer fires by one, and time goes on once it is right again."""

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.clock import ManualClock
from floodplain.errors import BadInput, NotFound
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.versions.records.schema import PROCESSING_TIME

HOUR = 3_600_000
DAY = 24 * HOUR
START = 1_700_000_000_000
ERRORS = [2 * HOUR, DAY, 3650 * DAY]


class Machine(ManualClock):
    """The clock of a machine: it can be wrong, and monotonic time is not affected by that."""

    def __init__(self) -> None:
        super().__init__(START)
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


class World:
    """A machine, and a store with a clock of its own, or with the machine's."""

    def __init__(self, *, local: bool = False) -> None:
        self.machine = Machine()
        self.local = local
        self.space = Space()
        self.times: dict[str, int] = {}
        self.asked = 0

    def store_ms(self) -> int:
        return self.machine.now_ms() - (0 if self.local else self.machine.wrong_ms)


class Timed(MemoryBlobs):
    def __init__(self, world: World) -> None:
        super().__init__("memory://timed", Counters(), world.space)
        self._world = world

    def create(self, name: str, data: Any) -> None:
        super().create(name, data)
        self._world.times[name] = self._world.store_ms()

    def put(self, name: str, data: Any) -> None:
        super().put(name, data)
        self._world.times[name] = self._world.store_ms()

    def modified_ms(self, name: str) -> int | None:
        self._world.asked += 1
        if name not in self._world.times:
            raise NotFound(name)
        return self._world.times[name]


class Kit(PipelineKit):
    def __init__(self, build: Callable[..., Any], world: World, **more: Any) -> None:
        self.world = world
        super().__init__(build, rows="user string", **more)

    def wipe(self) -> None:
        super().wipe()
        self._clock = self.world.machine

    def _blobs(self) -> Timed:
        return Timed(self.world)

    @property
    def processing_ms(self) -> int:
        return self.store.head.watermarks[PROCESSING_TIME]


class Visits(fp.KeyedProcess):
    """How often a user was seen within an hour of the last time; and a word ten minutes after each."""

    n = fp.Value("long", ttl="1 hour")
    output = "user string, n long, at long"

    def process(self, key, rows, ctx):
        self.n.set((self.n.get() or 0) + len(list(rows)))
        ctx.processing_timer(ctx.processing_time + 10 * 60_000)
        yield key.user, self.n.get(), ctx.processing_time

    def on_timer(self, key, at, ctx):
        yield key.user, -1, at


def visits(stream):
    return stream.key_by("user").process(Visits()).write("memory")


def seen(kit: Kit, *users: str) -> list[tuple[str, int]]:
    """The output of rows, without that of timers that are due."""
    out = kit.epoch([{"user": user} for user in users])["output"]
    return sorted((row["user"], row["n"]) for row in out if row["n"] > 0)


def script(kit: Kit, steps: int, wrong_ms: Callable[[int], int], restart: int = -1) -> list[Any]:
    """Seven minutes between two epochs, each with ticks; every user comes every third time, and one every tenth."""
    out: list[Any] = []
    for step in range(steps):
        kit.world.machine.advance_ms(7 * 60_000)
        kit.world.machine.wrong_ms = wrong_ms(step)
        if step == restart:
            kit.restart()
        users = [f"u{step % 3}", *(["rare"] if step % 10 == 0 else [])]
        before = kit.store.head.epoch
        out.append(seen(kit, *users))
        for _ in range(3):
            if not kit.tick(now_ms=0):
                break
        else:
            raise AssertionError("timers are due for ever")
        fired = range(before + 2, kit.store.head.epoch + 1)
        out.append([sorted(map(str, kit.sinks["output"].epochs[epoch].to_pylist())) for epoch in fired])
        out.append(sorted((row["user"], row["n"]) for row in kit.state("visits")))
    return out


@pytest.fixture(scope="module")
def right() -> list[Any]:
    """What comes out by clocks that are right."""
    return script(Kit(visits, World(), slots=1), 12, lambda _: 0)


@pytest.mark.parametrize("error_ms", ERRORS)
@pytest.mark.parametrize(("first", "last", "restart"), [(0, 12, 6), (3, 8, -1), (0, 5, 5), (7, 12, 9)])
def test_a_clock_that_is_ahead_changes_nothing(right, error_ms, first, last, restart):
    world = World()
    kit = Kit(visits, world, slots=1)
    got = script(kit, 12, lambda step: error_ms if first <= step < last else 0, restart)
    assert got == right
    assert kit.processing_ms <= world.store_ms()


@pytest.mark.parametrize("error_ms", [HOUR // 2, -DAY])
def test_clocks_that_differ_by_what_is_allowed_are_left_alone(error_ms, caplog):
    world = World()
    world.machine.wrong_ms = error_ms
    kit = Kit(visits, world)
    script(kit, 4, lambda _: error_ms)
    assert kit.processing_ms == world.machine.now_ms()
    assert not caplog.records


def test_the_setting_says_how_much_is_allowed():
    for allowed_ms, counts in ((10_000, False), (5 * DAY, True)):
        world = World()
        kit = Kit(visits, world, settings=StoreSettings(key_groups=16, max_clock_ahead_ms=allowed_ms))
        seen(kit, "ada")
        world.machine.wrong_ms = 3 * DAY
        seen(kit, "ada")
        assert (kit.processing_ms == world.machine.now_ms()) == counts
    with pytest.raises(BadInput, match="max_clock_ahead_ms=0 is not possible"):
        StoreSettings(max_clock_ahead_ms=0)


def test_it_is_said_once_with_both_times_and_again_when_it_happens_again(caplog):
    caplog.set_level(logging.WARNING, "floodplain")
    world = World()
    kit = Kit(visits, world)
    for _ in range(2):
        script(kit, 5, lambda _: 0)
        script(kit, 3, lambda _: DAY)
    assert len(caplog.records) == 2
    told = caplog.records[0].getMessage()
    assert "the clock of this machine says 2023-11-15T22:55:20" in told and "is at 2023-11-14T22:55:20" in told
    assert "Set it" in told and "max_clock_ahead_ms" in told
    assert [bool(progress.warnings) for progress in kit.progress][:3] == [False] * 3
    assert any("24 hours ahead" in warning for warning in kit.progress[-1].warnings)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("suspended", [True, False])
def test_a_query_that_stood_still_for_a_week_is_not_affected(local, suspended, caplog):
    """Stopped and started again, or suspended with its machine, whose monotonic clock may stand still meanwhile."""
    world = World(local=local)
    kit = Kit(visits, world)
    assert seen(kit, "ada") == [("ada", 1)]
    monotonic = world.machine.monotonic_s()
    world.machine.advance_ms(7 * DAY)
    if suspended:
        world.machine._elapsed_s = monotonic
    else:
        kit.restart()
    assert seen(kit, "ada") == [("ada", 1)], "what had an hour to live has ended"
    assert kit.processing_ms == START + 7 * DAY
    assert not caplog.records


@pytest.mark.parametrize("error_ms", ERRORS)
@pytest.mark.parametrize("restart", [True, False])
def test_time_goes_on_after_a_clock_was_ahead_that_nothing_could_show(error_ms, restart, caplog):
    """In a directory of the same machine."""
    caplog.set_level(logging.WARNING, "floodplain")
    world = World(local=True)
    kit = Kit(visits, world)
    script(kit, 5, lambda _: 0)
    world.machine.wrong_ms = error_ms
    seen(kit, "ada")
    assert kit.processing_ms == world.machine.now_ms() and not caplog.records
    world.machine.wrong_ms = 0
    world.machine.advance_ms(60_000)
    if restart:
        kit.restart()
    assert seen(kit, "bob") == [("bob", 1)]
    assert kit.processing_ms == world.machine.now_ms(), "it was set back"
    assert len(caplog.records) == 1 and "Processing time is set back" in caplog.records[0].getMessage()
    assert {row["user"] for row in kit.state("visits")} >= {"u0", "u1", "u2", "bob"}, "nothing is lost that was still there"
    world.machine.advance_ms(HOUR)
    assert seen(kit, "bob") == [("bob", 1)], "time to live is not frozen"
    assert len(caplog.records) == 1
    kit.restart()
    kit.store.verify()


@pytest.mark.parametrize(("epochs", "pause_ms"), [(20, 10 * 60_000), (1, 0)])
def test_time_is_not_set_back_by_a_clock_that_is_behind(epochs, pause_ms, caplog):
    """Else what is written would expire as soon as that clock is right."""
    caplog.set_level(logging.WARNING, "floodplain")
    world = World(local=True)
    kit = Kit(visits, world)
    for _ in range(epochs):
        world.machine.advance_ms(pause_ms)
        seen(kit, "ada")
    right_ms = kit.processing_ms
    world.machine.wrong_ms = -3 * HOUR if pause_ms else -3650 * DAY
    assert seen(kit, "bob") == [("bob", 1)]
    assert kit.processing_ms == right_ms
    assert len(caplog.records) == 1 and "seems to be behind" in caplog.records[0].getMessage()
    world.machine.wrong_ms = 0
    world.machine.advance_ms(60_000)
    assert seen(kit, "bob") == [("bob", 2)]


@pytest.mark.parametrize("ingestion", [True, False])
def test_times_of_sources_are_set_back_with_it(ingestion):
    def idling(stream):
        timed = stream.watermark(fp.ingestion_time()) if ingestion else stream.watermark("at", "1 second", idle="5 minutes")
        return timed.key_by("user").process(Visits()).write("memory")

    world = World(local=True)
    kit = Kit(idling, world) if ingestion else _sources(idling, world)
    row = {"user": "ada"} if ingestion else {"user": "ada", "at": START, "source": "a"}
    kit.epoch([row])
    world.machine.wrong_ms = DAY
    kit.epoch([row])
    world.machine.wrong_ms = 0
    world.machine.advance_ms(60_000)
    kit.epoch([row])
    later = {name: ms for name, ms in kit.store.head.watermarks.items() if ms > world.machine.now_ms()}
    assert not later


def _sources(build: Callable[..., Any], world: World) -> Kit:
    class Two(Kit):
        def __init__(self) -> None:
            self.world = world
            PipelineKit.__init__(self, build, rows={"a": "user string, at timestamp", "b": "user string, at timestamp"})

    return Two()


def test_a_clock_that_is_right_costs_one_request_and_no_writes():
    world = World()
    kit = Kit(visits, world)
    script(kit, 6, lambda _: 0)
    assert world.asked == 1
    assert not [name for name in world.times if name.startswith("probe/")][4:], "those of the start alone"


def test_a_store_of_its_own_goes_by_it_too():
    world = World()
    kit = Kit(visits, world)
    kit.stop()
    world.machine.wrong_ms = DAY
    with kit.store.writer("other", force=True) as writer:
        epoch = writer.epoch()
        epoch.commit()
    assert kit.store.head.watermarks[PROCESSING_TIME] == world.store_ms()
    assert isinstance(kit.store.snapshot().table("visits").to_arrow(), pa.Table)
