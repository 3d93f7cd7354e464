"""Process functions that the workers of the Spark tests import."""

import os
from pathlib import Path
from typing import ClassVar

from floodplain.errors import Unavailable
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.state.descriptors import Broadcast, List, TaskValue, Value
from tests.waiting import wait_for


class Count(KeyedProcess):
    n = Value("long", default=0)
    total = Value("long", default=0)
    output = "user string, n long, total long"

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(rows))
        self.total.set(self.total.get() + sum(row.amount for row in rows))
        yield key.user, self.n.get(), self.total.get()


class Held(Count):
    """Counts once it is let go: it leaves the file ``begun`` in a folder and waits there for the file ``go``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, key, rows, ctx):
        (self.folder / "begun").touch()
        wait_for("go", (self.folder / "go").exists)
        yield from super().process(key, rows, ctx)


class Sightings(KeyedProcess):
    """How often a user was there."""

    n = Value("long", default=0)
    output = "user string, n long"

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(rows))
        yield key.user, self.n.get()


class Whereabouts(KeyedProcess):
    """In which process a key was processed."""

    output = "user string, process long"

    def process(self, key, rows, ctx):
        yield key.user, os.getpid()


class HandedOver(KeyedProcess):
    """What the session of a task has for this setting, and how often the key was there."""

    n = Value("long", default=0)
    output = "user string, n long, value string"

    def __init__(self, setting: str) -> None:
        self.setting = setting

    def process(self, key, rows, ctx):
        from pyspark import TaskContext  # the kit's tests import this module, and do without Spark

        self.n.set(self.n.get() + 1)
        yield key.user, self.n.get(), TaskContext.get().getLocalProperty(self.setting)


class ByCount(KeyedProcess):
    users = List("string")
    output = "n long, users array<string>"

    def process(self, key, rows, ctx):
        for row in rows:
            self.users.append(row.user)
        yield key.n, sorted(self.users)


class Tally(KeyedProcess):
    """Counts; says so aside when a count passes a multiple of five."""

    n = Value("long", default=0)
    output = "user string, n long"
    side_outputs: ClassVar = {"fives": "user string, n long", "late": "user string, amount long"}

    def process(self, key, rows, ctx):
        before = self.n.get()
        self.n.set(before + len(rows))
        if self.n.get() // 5 > before // 5:
            ctx.emit("fives", (key.user, self.n.get()))
        yield key.user, self.n.get()


class BySource(KeyedProcess):
    clicks = Value("long", default=0)
    shown = Value("long", default=0)
    output = "ad long, shown long, clicks long"

    def process(self, key, rows, ctx):
        self.clicks.set(self.clicks.get() + sum(row.source == "clicks" for row in rows))
        self.shown.set(self.shown.get() + sum(row.source == "impressions" for row in rows))
        yield key.ad, self.shown.get(), self.clicks.get()


class LastSeen(KeyedProcess):
    """Tells each user's count once no more can come."""

    n = Value("long", default=0)
    output = "user string, n long, at long"

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(rows))
        ctx.timer(ctx.event_time + 1000)

    def on_timer(self, key, at, ctx):
        if not ctx.timers():
            yield key.user, self.n.get(), at


class Trail(KeyedProcess):
    """The times of each user in the order in which they are processed."""

    seen = Value("long", default=0)
    output = "user string, number long, at timestamp"

    def process(self, key, rows, ctx):
        for row in rows:
            yield key.user, self.seen.get(), row.at
            self.seen.set(self.seen.get() + 1)


class Picky(KeyedProcess):
    """Counts, and fails on negative amounts."""

    n = Value("long", default=0)
    output = "user string, n long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.n.set(self.n.get() + 1)
            if row.amount < 0:
                raise ValueError("negative amount")
        yield key.user, self.n.get()


def total(values):
    return sum(values)


def spread(value, slots):
    return [value // slots + (number < value % slots) for number in range(slots)]


class Priced(KeyedProcess):
    """Rows at the price of the day, which all tasks know; and how many rows each slot has seen."""

    prices = Broadcast("string", "long")
    seen = TaskValue("long", default=0, split=spread, merge=total)
    spent = Value("long", default=0)
    output = "user string, spent long"

    def on_broadcast(self, rows, ctx):
        for row in rows:
            self.prices.put(row.item, row.price)

    def process(self, key, rows, ctx):
        self.seen.set(self.seen.get() + len(rows))
        self.spent.set(self.spent.get() + sum(row.amount * self.prices.get("tea", 0) for row in rows))
        yield key.user, self.spent.get()


class Echo(KeyedProcess):
    """Says each user once more, a little later."""

    output = "user string"

    def process(self, key, rows, ctx):
        ctx.processing_timer(ctx.processing_time + 10)
        yield (key.user,)

    def on_timer(self, key, at, ctx):
        yield (f"{key.user} again",)


class Rearmed(KeyedProcess):
    """Sets its timer again for the time it was set for."""

    n = Value("long", default=0)
    output = "user string, n long"

    def process(self, key, rows, ctx):
        ctx.timer(5)

    def on_timer(self, key, at, ctx):
        self.n.set(self.n.get() + 1)
        ctx.timer(at)
        yield key.user, self.n.get()


class Grumpy(KeyedProcess):
    """Fails when its timer fires."""

    output = "user string"

    def process(self, key, rows, ctx):
        ctx.processing_timer(ctx.processing_time + 10)

    def on_timer(self, key, at, ctx):
        raise LookupError(f"nothing for {key.user}")


class OutOfReach(KeyedProcess):
    """Meets a tier that does not answer."""

    output = "user string"

    def process(self, key, rows, ctx):
        raise Unavailable("the tier sleeps")


class Stuck(Picky):
    """Fails on negative amounts, once other tasks wait in a folder for the file ``go``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, key, rows, ctx):
        if any(row.amount < 0 for row in rows):
            wait_for("another task", (self.folder / "begun").exists)
            yield from super().process(key, rows, ctx)
        else:
            (self.folder / "begun").touch()
            wait_for("go", (self.folder / "go").exists)
