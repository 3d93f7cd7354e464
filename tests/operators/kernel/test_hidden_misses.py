"""Keys whose state is at hand are processed while the state of others travels; results do not show it."""

import threading
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from floodplain.errors import Corrupt, Unavailable, UserError
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.settings import RetrySettings, StoreSettings
from floodplain.state.descriptors import Map, TaskValue, Value
from floodplain.testing.process_kit import ProcessKit
from tests.operators.kernel.remote import Remote, remote_kit, wait

SETTINGS = StoreSettings(key_groups=16, chunk_bytes=1, retry=RetrySettings(attempts=1))
ROWS = "user string, n long"
USERS = [f"user{number}" for number in range(64)]


def rows_of(*users: str) -> list[dict[str, Any]]:
    return [{"user": user, "n": 1} for user in users]


class Counting(KeyedProcess):
    """Tells a test which key is processed."""

    n = Value("long", default=0)
    output = "user string, n long"
    called: Any = staticmethod(lambda user: None)

    def process(self, key, rows, ctx):
        self.called(key.user)
        self.n.set(self.n.get() + len(rows))
        yield key.user, self.n.get()


def kit_with_state(blobs: Remote, process: KeyedProcess, settings: StoreSettings = SETTINGS) -> tuple[ProcessKit, str, str]:
    """A kit with state of many keys, and two of them: one whose state is at hand, and one that misses. The one that misses
    comes first in the order of keys."""
    kit = remote_kit(process, blobs, settings, rows=ROWS, keys=["user"])
    order = [row["user"] for row in kit.epoch(rows_of(*USERS))]
    missing, at_hand = order[0], order[-1]
    kit.store.compact(full=True)
    kit.store.open_runs.keep_only(())
    assert kit.epoch(rows_of(at_hand)) == [{"user": at_hand, "n": 2}]
    # The run of that epoch is opened, and what it has is read.
    kit.store.snapshot().stored("kit").multi_get(pa.table({"user": [at_hand]}))
    return kit, at_hand, missing


@pytest.fixture
def called(monkeypatch):
    """The users whose rows were processed, in that order; an event for each is set then."""
    seen: list[str] = []
    monkeypatch.setattr(Counting, "called", staticmethod(seen.append))
    return seen


def no_thread_is_left() -> bool:
    return not any(thread.name.startswith("floodplain-read-ahead") for thread in threading.enumerate())


def test_a_key_at_hand_is_processed_before_the_answer_for_another_comes(monkeypatch):
    blobs, processed = Remote(), threading.Event()
    kit, at_hand, missing = kit_with_state(blobs, Counting())
    seen: list[str] = []

    def called(user: str) -> None:
        seen.append(user)
        if user == at_hand:
            processed.set()

    monkeypatch.setattr(Counting, "called", staticmethod(called))
    blobs.answer = lambda name: wait(processed)
    assert kit.epoch(rows_of(missing, at_hand)) == [{"user": missing, "n": 2}, {"user": at_hand, "n": 3}]
    assert seen == [at_hand, missing] and no_thread_is_left()


class Reminding(Counting):
    """Emits to the side for its rows, and has a timer that tells what it sees."""

    side_outputs: ClassVar = {"aside": "user string"}

    def process(self, key, rows, ctx):
        ctx.emit("aside", (key.user,))
        ctx.processing_timer(rows[0].n)
        yield from super().process(key, rows, ctx)

    def on_timer(self, key, at, ctx):
        ctx.emit("aside", (f"{key.user} at {at}",))
        yield key.user, 100 * self.n.get()


def test_timers_and_side_outputs_keep_the_order_of_keys(called):
    kit = remote_kit(Reminding(), Remote(), SETTINGS, rows=ROWS, keys=["user"])
    order = [row["user"] for row in kit.epoch(rows_of(*USERS), now_ms=0)]
    at_hand, missing = order[-1], order[0]
    kit.store.open_runs.keep_only(())
    kit.epoch(rows_of(at_hand), now_ms=0)
    kit.store.snapshot().stored("kit").multi_get(pa.table({"user": [at_hand]}))
    called.clear()
    out = kit.epoch([{"user": missing, "n": 2}, {"user": at_hand, "n": 1}], now_ms=2)
    mine = [row for row in out if row["user"] in (missing, at_hand)]
    assert called == [at_hand, missing]
    assert [(row["user"], row["n"]) for row in mine] == [
        *((missing, 2), (at_hand, 3)),
        *((missing, 200), (at_hand, 300), (missing, 200)),
    ]
    asides = [row["user"] for row in kit.sides["aside"] if row["user"].split()[0] in (missing, at_hand)]
    assert asides == [missing, at_hand, f"{missing} at 1", f"{at_hand} at 1", f"{missing} at 2"]
    assert no_thread_is_left()


class Paging(KeyedProcess):
    """Reads the entries that its rows name, and nothing else."""

    pages = Map("string", "long", prefetch="page")
    output = "user string, n long"

    def process(self, key, rows, ctx):
        Counting.called(key.user)
        for row in rows:
            self.pages.put(row.page, self.pages.get(row.page, 0) + 1)
        yield key.user, self.pages.get(rows[0].page)


def test_entries_that_rows_name_travel_in_the_background_too(monkeypatch):
    blobs, processed = Remote(), threading.Event()
    kit = remote_kit(Paging(), blobs, SETTINGS, rows="user string, page string", keys=["user"])
    order = [row["user"] for row in kit.epoch([{"user": user, "page": "/"} for user in USERS])]
    missing, at_hand = ({"user": user, "page": "/"} for user in (order[0], order[-1]))
    kit.store.open_runs.keep_only(())
    kit.epoch([at_hand])
    kit.store.snapshot().stored("kit__pages").multi_get(pa.table({"user": [at_hand["user"]]}))
    monkeypatch.setattr(Counting, "called", staticmethod(lambda user: processed.set() if user == at_hand["user"] else None))
    blobs.answer = lambda name: wait(processed)
    assert kit.epoch([missing, at_hand]) == [{"user": order[0], "n": 2}, {"user": order[-1], "n": 3}]
    assert no_thread_is_left()


def test_it_can_be_turned_off(called):
    blobs = Remote()
    settings = StoreSettings(key_groups=16, chunk_bytes=1, hide_misses=False)
    kit, at_hand, missing = kit_with_state(blobs, Counting(), settings)
    kit.epoch(rows_of(missing, at_hand))
    assert called[-2:] == [missing, at_hand]


class Numbering(Counting):
    """The order of keys shows in its output."""

    calls = TaskValue("long", default=0, split=lambda value, slots: [value] + [0] * (slots - 1), merge=sum)
    output = "user string, n long, call long"

    def process(self, key, rows, ctx):
        self.calls.set(self.calls.get() + 1)
        for user, n in super().process(key, rows, ctx):
            yield user, n, self.calls.get()


def test_task_values_see_the_keys_in_their_order(called):
    blobs = Remote()
    kit = remote_kit(Numbering(), blobs, SETTINGS, rows=ROWS, keys=["user"])
    order = [row["user"] for row in kit.epoch(rows_of(*USERS))]
    kit.store.open_runs.keep_only(())
    kit.epoch(rows_of(order[-1]))
    kit.epoch(rows_of(order[0], order[-1]))
    assert called[-2:] == [order[0], order[-1]]


def test_a_failed_answer_is_the_error_of_the_epoch(called):
    blobs = Remote()
    kit, at_hand, missing = kit_with_state(blobs, Counting())
    called.clear()

    def fail(name: str) -> None:
        raise Unavailable(f"no answer for {name}")

    blobs.answer = fail
    asked = len(blobs.asked)
    with pytest.raises(Unavailable, match="no answer for"):
        kit.epoch(rows_of(missing, at_hand))
    assert called == [at_hand, missing] and len(blobs.asked) == asked + 1 and no_thread_is_left()
    blobs.answer = lambda name: None
    assert kit.epoch(rows_of(missing, at_hand)) == [{"user": missing, "n": 2}, {"user": at_hand, "n": 3}]


def test_a_run_that_is_gone_is_named(called):
    blobs = Remote()
    kit, at_hand, missing = kit_with_state(blobs, Counting())
    gone: list[str] = []

    def lose(name: str) -> None:
        gone.append(name)
        blobs.delete([name])

    blobs.answer = lose
    with pytest.raises(Corrupt, match="no such file") as error:
        kit.epoch(rows_of(missing, at_hand))
    assert gone == [error.value.file] and no_thread_is_left()


def test_an_error_of_the_user_ends_what_is_under_way(monkeypatch):
    blobs, raised = Remote(), threading.Event()
    kit, at_hand, missing = kit_with_state(blobs, Counting())

    def called(user: str) -> None:
        raised.set()
        raise ValueError(f"not {user}")

    monkeypatch.setattr(Counting, "called", staticmethod(called))
    blobs.answer = lambda name: wait(raised)
    with pytest.raises(UserError, match=f"not {at_hand}"):
        kit.epoch(rows_of(missing, at_hand))
    assert no_thread_is_left()
