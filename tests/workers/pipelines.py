"""A pipeline whose output shows what was lost, doubled, out of order or left over from another try; and its control."""

import ctypes
from datetime import UTC, datetime
from functools import cache

import floodplain as fp
from floodplain.testing.pipeline_kit import PipelineKit
from tests.waiting import wait_for

ROWS = "user string, number long, ts timestamp"
USERS, NUMBERS = 12, 60


class Numbered(fp.KeyedProcess):
    """Each row with how many of its user came before it, and how many calls this object has had."""

    seen = fp.Value("long", default=0)
    last = fp.Value("long", default=-1)
    output = "user string, number long, place long, before long, calls long, parity long"

    def __init__(self):
        self.calls = 0

    def process(self, key, rows, ctx):
        self.calls += 1
        for row in rows:
            yield key.user, row.number, self.seen.get(), self.last.get(), self.calls, row.number % 5
            self.seen.set(self.seen.get() + 1)
            self.last.set(row.number)
        ctx.timer(ctx.event_time + 1000)

    def on_timer(self, key, at, ctx):
        yield key.user, -1, self.seen.get(), self.last.get(), 0, at % 5


class Gathered(fp.KeyedProcess):
    """All that came of one remainder, in the order in which it came of each user."""

    trail = fp.List("string")
    output = "parity long, rows long, users array<string>"

    def process(self, key, rows, ctx):
        for row in rows:
            self.trail.append(f"{row.user} {row.number} {row.place} {row.before} {row.calls}")
        yield key.parity, len(self.trail), sorted(self.trail, key=lambda each: each.split()[0])


class HoldsTheGil(fp.KeyedProcess):
    """Calls, once, a library that lets no other thread of the process run for some seconds."""

    output = "user string, n long"
    seen = fp.Value("long", default=0)

    def __init__(self, folder, seconds):
        self.folder, self.seconds = folder, seconds

    def process(self, key, rows, ctx):
        self.seen.set(self.seen.get() + len(rows))
        try:
            (self.folder / "held").touch(exist_ok=False)
            ctypes.PyDLL(None).usleep(int(self.seconds * 1_000_000))
        except FileExistsError:
            pass
        yield key.user, self.seen.get()


class Endless(fp.KeyedProcess):
    """Leaves a file in a folder for each call, and never returns."""

    output = "user string"

    def __init__(self, folder):
        self.folder = folder

    def process(self, key, rows, ctx):
        (self.folder / key.user).touch()
        wait_for("the end of time", lambda: False, 3600)
        yield (key.user,)


def build(stream):
    numbered = stream.watermark("ts", "1 second").key_by("user").process(Numbered(), name="numbered")
    return numbered.key_by("parity").process(Gathered(), name="gathered").write("memory")


def batches(epochs):
    """The same each time: users take turns, so that one user's rows are in every partition."""
    return [
        [
            {"user": f"u{number % USERS}", "number": number, "ts": datetime.fromtimestamp(number / 20, UTC)}
            for number in range(epoch * NUMBERS, (epoch + 1) * NUMBERS)
        ]
        for epoch in range(epochs)
    ]


@cache
def control(epochs, slots=4):
    """What each epoch gives in one process, without faults."""
    kit = PipelineKit(build, rows=ROWS, slots=slots)
    return [shown(kit.epoch(rows)) for rows in batches(epochs)], state_of(kit)


def shown(output):
    """Rows of an epoch's sinks, in an order that does not depend on the names of files."""
    return sorted(repr(row) for rows in output.values() for row in rows)


def state_of(kit):
    return {table: sorted(map(repr, kit.state(table))) for table in ("numbered", "gathered__trail")}
