"""Process functions that the workers of the Spark tests import."""

from typing import ClassVar

from floodplain.operators.process import KeyedProcess
from floodplain.state.descriptors import List, Value


class Count(KeyedProcess):
    n = Value("long", default=0)
    total = Value("long", default=0)
    output = "user string, n long, total long"

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(rows))
        self.total.set(self.total.get() + sum(row.amount for row in rows))
        yield key.user, self.n.get(), self.total.get()


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


class Echo(KeyedProcess):
    """Says each user once more, a little later."""

    output = "user string"

    def process(self, key, rows, ctx):
        ctx.processing_timer(ctx.processing_time + 10)
        yield (key.user,)

    def on_timer(self, key, at, ctx):
        yield (f"{key.user} again",)
