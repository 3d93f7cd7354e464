"""``open`` and ``close`` of process functions: once per process, not per epoch, key or slot; and what they leave."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.errors import UserError

ROWS = "user string, page string, at long"


class Connection:
    """Something that cannot be pickled and counts what is done with it."""

    def __init__(self, log):
        self.log, self.uses = log, 0
        self.unpicklable = lambda: None


class Keyed(fp.KeyedProcess):
    output = "user string, uses long"

    def __init__(self, log):
        self.log = log

    def open(self, ctx):
        self.log.append(("open", ctx.operator))
        return Connection(self.log)

    def close(self, resource):
        self.log.append(("close", resource.uses))

    def process(self, key, rows, ctx):
        ctx.resource.uses += 1
        if rows[0].page == "later":
            ctx.timer(ctx.event_time)
        yield key.user, ctx.resource.uses

    def on_timer(self, key, at, ctx):
        yield f"timer of {key.user}", ctx.resource.uses


class Batched(fp.KeyedBatchProcess):
    output = "user string, uses long"

    def __init__(self, log):
        self.log = log

    def open(self, ctx):
        self.log.append(("open", ctx.operator))
        return Connection(self.log)

    def close(self, resource):
        self.log.append(("close", resource.uses))

    def process(self, batch, ctx):
        ctx.resource.uses += len(batch.keys)
        return batch.keys.append_column("uses", pa.array([ctx.resource.uses] * len(batch.keys)))


def rows(*users, at=1, page="/"):
    return [{"user": user, "page": page, "at": at} for user in users]


@pytest.mark.parametrize("kind", [Keyed, Batched])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_process_kit_opens_once_for_all_epochs_keys_and_slots(kind, slots):
    log = []
    kit = fp.ProcessKit(kind(log), rows=ROWS, keys=["user"], event_time="at", slots=slots)
    assert log == [], "not before a task runs"
    for at in range(1, 5):
        kit.epoch(rows("a", "b", "c", at=at))
    assert log == [("open", "kit")]
    kit.close()
    kit.close()
    assert log == [("open", "kit"), ("close", 12)]
    kit.epoch(rows("a", at=9))
    assert log[2:] == [("open", "kit")]


def test_timers_and_broadcast_rows_have_it_too():
    seen = []

    class Rules(Keyed):
        rules = fp.Broadcast("string", "long")

        def on_broadcast(self, rows, ctx):
            seen.append(ctx.resource)

    kit = fp.ProcessKit(Rules([]), rows=ROWS, keys=["user"], event_time="at", broadcast="rule string")
    out = kit.epoch(rows("a", at=3, page="later"), broadcast=[{"rule": "x"}], watermark_ms=3)
    assert [row["user"] for row in out] == ["a", "timer of a"]
    assert isinstance(seen[0], Connection)


@pytest.mark.parametrize("kind", [Keyed, Batched])
def test_a_pipeline_kit_opens_once_per_operator_and_again_after_a_restart(kind):
    log = []

    def build(stream):
        one, two = (stream.key_by("user").process(kind(log), name=name) for name in ("first", "second"))
        return one.write("memory").also(two.write("memory"))

    kit = fp.PipelineKit(build, rows=ROWS, slots=3)
    assert log == []
    for _ in range(3):
        kit.epoch(rows("a", "b"))
    assert log == [("open", "first"), ("open", "second")]
    kit.restart()
    assert log[2:] == [("close", 6), ("close", 6)]
    kit.epoch(rows("a"))
    kit.close()
    assert log[4:] == [("open", "first"), ("open", "second"), ("close", 1), ("close", 1)]


def test_kits_do_not_share_what_they_open():
    logs = [], []
    kits = [fp.ProcessKit(Keyed(log), rows=ROWS, keys=["user"]) for log in logs]
    for kit in kits:
        assert kit.epoch(rows("a")) == [{"user": "a", "uses": 1}]
    assert logs == ([("open", "kit")], [("open", "kit")])


@pytest.mark.parametrize("kind", [Keyed, Batched])
def test_an_error_in_open_names_the_operator_and_the_next_task_tries_again(kind):
    class Refused(kind):
        def open(self, ctx):
            if not self.log:
                self.log.append("tried")
                raise ConnectionError("nobody answers")
            return super().open(ctx)

    kit = fp.PipelineKit(lambda s: s.key_by("user").process(Refused([]), name="loader").write("memory"), rows=ROWS)
    with pytest.raises(UserError, match="ConnectionError in operator loader, open: nobody answers"):
        kit.epoch(rows("a"))
    kit.restart()
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"user": "a", "uses": 1}]


def test_what_open_sets_on_itself_is_refused_because_it_would_be_gone():
    class Forgetful(Keyed):
        def open(self, ctx):
            self.model = object()

    kit = fp.ProcessKit(Forgetful([]), rows=ROWS, keys=["user"], name="scores")
    with pytest.raises(UserError, match=r"operator scores: open set self\.model.*return what is to stay.*ctx\.resource"):
        kit.epoch(rows("a"))


def test_an_error_in_close_stops_nothing_and_is_logged(caplog):
    class Broken(Keyed):
        def close(self, resource):
            raise OSError("gone already")

    kit = fp.ProcessKit(Broken([]), rows=ROWS, keys=["user"], name="scores")
    kit.epoch(rows("a"))
    kit.close()
    assert "operator scores: close failed" in caplog.text and "gone already" in caplog.text


def test_states_may_be_called_open_and_close():
    class Candles(fp.KeyedProcess):
        open = fp.Value("long")
        close = fp.Value("long")
        output = "user string, open long, close long"

        def process(self, key, rows, ctx):
            if self.open.get() is None:
                self.open.set(rows[0].at)
            self.close.set(rows[-1].at)
            yield key.user, self.open.get(), self.close.get()

    kit = fp.ProcessKit(Candles(), rows=ROWS, keys=["user"])
    kit.epoch(rows("a", at=1))
    assert kit.epoch(rows("a", at=5)) == [{"user": "a", "open": 1, "close": 5}]
    kit.close()


LEAVING = """
import os, sys
import floodplain as fp
from floodplain.runtime import resources
from tests.operators.kernel.test_open import Keyed, ROWS, rows

class Telling(Keyed):
    def close(self, resource):
        print("closed", flush=True)

kit = fp.ProcessKit(Telling([]), rows=ROWS, keys=["user"])
resources.HERE, kit._resources = kit._resources, kit._resources
kit.epoch(rows("a"))
if os.fork() == 0:
    sys.exit(0)  # a process that was forked off owns nothing
os.wait()
"""


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(3)",
        "resources.close_when_spark_ends(); os._exit(3)",
        "resources.close_when_spark_ends(); os.kill(os.getpid(), 1)",
        "resources.close_when_spark_ends(); os.kill(os.getpid(), 15)",
    ],
    ids=["exit", "as a worker", "hangup", "terminated"],
)
def test_it_is_closed_once_when_the_process_ends(end):
    done = subprocess.run(
        [sys.executable, "-c", LEAVING + end], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.stdout == "closed\n", done.stderr
