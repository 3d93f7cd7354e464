"""Taking over the lease: at once from who is gone, later from who is silent, never from who lives."""

import logging
import subprocess
import sys
from threading import Thread

import msgspec
import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Fenced, LeaseHeld
from floodplain.runtime.lease_takeover import take_over
from floodplain.settings import StoreSettings
from floodplain.store.store import Store
from floodplain.versions.log.lease import left_ms
from tests.waiting import wait_for

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LONG = StoreSettings(lease_ms=3_600_000)

HOLDS = """
import sys, floodplain as fp
writer = fp.open(sys.argv[1], create=True, settings=fp.StoreSettings(lease_ms=3_600_000)).writer("elsewhere")
print("held", flush=True)
sys.stdin.readline()
"""


def held_elsewhere(folder) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDS, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known who has ended")
def test_a_process_that_was_killed_while_another_waits_for_its_lease_of_an_hour(tmp_path, caplog):
    process = held_elsewhere(tmp_path)
    store = Store.open(tmp_path, settings=LONG)
    with pytest.raises(LeaseHeld, match=rf"'elsewhere' \(process {process.pid} on .+\) holds lease 1"):
        store.writer("me")
    taken = []
    waiting = Thread(target=lambda: taken.append(take_over(store, "me")), daemon=True)
    with caplog.at_level(logging.WARNING, "floodplain"):
        waiting.start()
        told = f"held by 'elsewhere' (process {process.pid} on "
        wait_for("word of whom it waits for", lambda: told in caplog.text and "waiting up to 3" in caplog.text)
        assert waiting.is_alive() and not taken
        process.kill()
        process.wait()
        waiting.join(60)
    assert taken[0].token == 2 and "is over" in caplog.text
    with Store.open(tmp_path).writer("next", force=True) as writer:
        assert writer.token == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known who has ended")
def test_of_a_process_that_is_gone_the_lease_is_had_without_a_word(tmp_path, caplog):
    process = held_elsewhere(tmp_path)
    process.kill()
    process.wait()
    with take_over(Store.open(tmp_path, settings=LONG), "me") as writer:
        assert writer.token == 2
    assert not caplog.records


class Watched(ManualClock):
    """Something happens at the n-th look."""

    def __init__(self, at: int, act, now_ms: int = NOW_MS) -> None:
        super().__init__(now_ms)
        self._at, self._act = at, act

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        if len(self.sleeps_s) == self._at:
            self._act()


def test_who_is_silent_is_waited_for_until_the_lease_ends(tmp_path, caplog):
    clock = ManualClock()
    held = Store.open(tmp_path, create=True, clock=clock).writer("silent")
    with take_over(Store.open(tmp_path, clock=clock), "me") as writer:
        assert writer.token == 2 and sum(clock.sleeps_s) == pytest.approx(30)
    assert "held by 'silent' (process" in caplog.text and "waiting up to 30.0 s" in caplog.text
    with pytest.raises(Fenced):
        held.epoch().commit()


def test_a_release_is_seen_at_the_next_look(tmp_path):
    clock = Watched(3, lambda: held.close())
    held = Store.open(tmp_path, create=True, clock=clock).writer("leaving")
    with take_over(Store.open(tmp_path, clock=clock), "me") as writer:
        assert writer.token == 2 and len(clock.sleeps_s) == 3


@pytest.mark.parametrize("takes_again", [False, True])
def test_a_release_between_the_refusal_and_the_look_at_why_costs_no_wait(tmp_path, caplog, takes_again):
    """Unless the holder, or another, has taken it once more by then."""

    class Releasing(Store):
        def writer(self, owner, **given):
            try:
                return super().writer(owner, **given)
            except LeaseHeld:
                held.close()
                if takes_again:
                    Store.open(tmp_path, clock=clock).writer("quick")
                raise

    clock = ManualClock()
    held = Store.open(tmp_path, create=True, clock=clock).writer("leaving")
    store = Releasing.open(tmp_path, clock=clock)
    if takes_again:
        with pytest.raises(LeaseHeld):
            take_over(store, "me")
    else:
        assert take_over(store, "me").token == 2
    assert not clock.sleeps_s and not caplog.records


@pytest.mark.parametrize("renews", [1, 20])
def test_who_lives_keeps_it(tmp_path, renews):
    clock = Watched(renews, lambda: held.epoch().commit())
    held = Store.open(tmp_path, create=True, clock=clock).writer("alive")
    with pytest.raises(LeaseHeld, match="'alive'"):
        take_over(Store.open(tmp_path, clock=clock), "me")
    assert len(clock.sleeps_s) == renews and held.store.history.refresh().lease.token == 1


def test_force_waits_for_nobody(tmp_path, caplog):
    clock = ManualClock()
    Store.open(tmp_path, create=True, clock=clock).writer("alive")
    with take_over(Store.open(tmp_path, clock=clock), "me", force=True) as writer:
        assert writer.token == 2 and not clock.sleeps_s and not caplog.records


@pytest.mark.parametrize("ahead_ms", [5_000, DAY_MS, 1000 * 365 * DAY_MS, 2**62])
@pytest.mark.parametrize("lease_ms", [1_000, 30_000, 600_000])
def test_a_dead_driver_whose_clock_was_ahead_is_waited_for_as_long_as_its_lease_was(tmp_path, caplog, ahead_ms, lease_ms):
    theirs, ours = StoreSettings(lease_ms=lease_ms), ManualClock(NOW_MS)
    Store.open(tmp_path, create=True, settings=theirs, clock=ManualClock(NOW_MS + ahead_ms)).writer("dead")
    with pytest.raises(LeaseHeld, match=rf"by its clock, .* ahead of this one \(so for {lease_ms / 1000} s at most\)"):
        Store.open(tmp_path, clock=ours).writer("me")
    with take_over(Store.open(tmp_path, clock=ours), "me") as writer:
        assert writer.token == 2 and sum(ours.sleeps_s) == pytest.approx(lease_ms / 1000)
    assert f"waiting up to {lease_ms / 1000} s" in caplog.text
    assert f"By its clock it ends {ahead_ms / 1000:.1f} s later: that one is ahead of ours" in caplog.text


def test_a_clock_that_is_set_while_it_waits_makes_no_difference(tmp_path):
    """The wall clock goes back a day; what is waited by is not it."""

    class SetBack(Watched):
        def now_ms(self) -> int:
            return super().now_ms() - (DAY_MS if len(self.sleeps_s) >= 3 else 0)

    Store.open(tmp_path, create=True, clock=ManualClock(NOW_MS)).writer("dead")
    clock = SetBack(0, lambda: None)
    with take_over(Store.open(tmp_path, clock=clock), "me") as writer:
        assert writer.token == 2 and sum(clock.sleeps_s) == pytest.approx(30)


@pytest.mark.parametrize("set_back_ms", [0, DAY_MS])
@pytest.mark.parametrize("at", [1, 20, 60])
def test_a_driver_that_lives_keeps_it_though_its_clock_is_ahead_or_is_put_right(tmp_path, at, set_back_ms):
    """Also if it renews at the last moment, and to an earlier end than it had said before."""
    theirs = ManualClock(NOW_MS + DAY_MS)

    def renew() -> None:
        theirs.advance_ms(1000 - set_back_ms)
        held.epoch().commit()

    held = Store.open(tmp_path, create=True, clock=theirs).writer("alive")
    with pytest.raises(LeaseHeld, match="'alive'"):
        take_over(Store.open(tmp_path, clock=Watched(at, renew)), "me")
    assert held.store.history.refresh().lease.token == 1


def test_states_that_do_not_say_how_long_a_lease_was_are_waited_for_as_long_as_ours_are(tmp_path):
    clock = ManualClock(NOW_MS)
    Store.open(tmp_path, create=True, clock=ManualClock(NOW_MS + DAY_MS)).writer("dead")
    store = Store.open(tmp_path, clock=clock, settings=StoreSettings(lease_ms=7_000))
    old = msgspec.structs.replace(store.head.lease, length_ms=0)
    assert left_ms(old, store.history) == 7_000
