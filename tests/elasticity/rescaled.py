"""Pipelines with state of every kind, for runs that are rescaled; and what a run gives that does not depend on slots."""

from collections import Counter
from typing import ClassVar

import floodplain as fp
from floodplain.state.tables import SLOTS
from floodplain.testing.pipeline_kit import PipelineKit

ROWS = "user string, amount long, at long"


def total(values):
    return sum(values)


def spread(value, slots):
    return [value // slots + (number < value % slots) for number in range(slots)]


class Seen(fp.KeyedProcess):
    """Counts by key and by slot, sets timers of both kinds, and tells big amounts aside."""

    n = fp.Value("long", default=0)
    trail = fp.List("long")
    rows = fp.TaskValue("long", default=0, split=spread, merge=total)
    output = "user string, n long, parity long"
    side_outputs: ClassVar = {"big": "user string, amount long"}

    def process(self, key, rows, ctx):
        for row in rows:
            self.n.set(self.n.get() + 1)
            self.trail.append(row.amount)
            if row.amount > 7:
                ctx.emit("big", (key.user, row.amount))
            ctx.timer(row.at + 20)
        self.rows.set(self.rows.get() + len(rows))
        ctx.processing_timer(ctx.processing_time + 2)
        yield key.user, self.n.get(), self.n.get() % 3

    def on_timer(self, key, at, ctx):
        yield key.user, -self.n.get(), sum(self.trail) % 3


class Gathered(fp.KeyedProcess):
    """How many rows of each remainder there were."""

    counts = fp.Map("string", "long")
    output = "parity long, users long, rows long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.counts.merge(row.user, 1)
        yield key.parity, len(self.counts), sum(self.counts.values())


class Heights(fp.KeyedProcess):
    """Each user's count as it was told last."""

    last = fp.Value("long", default=0)
    output = "user string, last long, rose long"

    def process(self, key, rows, ctx):
        before = self.last.get()
        self.last.set(max(row.n for row in rows))
        yield key.user, self.last.get(), self.last.get() - before


class Lasts(fp.KeyedProcess):
    output = "user string, last long, rose long"

    def process(self, key, rows, ctx):
        yield key.user, key.last, key.rose


class InOrder(fp.KeyedProcess):
    """Rows by event time, as the buffer lets them go."""

    trail = fp.List("long")
    output = "user string, at long, place long"

    def process(self, key, rows, ctx):
        for row in rows:
            self.trail.append(row.at)
            yield key.user, row.at, len(self.trail)


def chained(stream):
    """Three operators read one output, two of them by the same keys."""
    seen = stream.watermark("at", "0 ms").key_by("user").process(Seen(), name="seen", on_error="dead_letter")
    gathered = seen.key_by("parity").process(Gathered(), name="gathered")
    heights = seen.key_by("user").process(Heights(), name="heights")
    again = seen.where("n > parity").key_by("user").process(Heights(), name="again")
    outputs = {"seen": seen, "big": seen.side("big"), "heights": heights, "again": again, "gathered": gathered}
    return together(outputs)


def brief(stream):
    seen = stream.watermark("at", "0 ms").key_by("user").process(Seen(), name="seen")
    return seen.key_by("user").process(Heights(), name="heights").write("memory")


def timed(stream):
    """Windows, a join, deduplication, ranks, and rows that wait for their order."""
    rows = stream.watermark("at", "0 ms")
    left, right = rows.select("user", "amount", "at"), rows.where("amount > 3").select("user", "amount", "at")
    outputs = {
        "hot": rows.key_by("user").window(fp.tumbling("10 milliseconds")).agg(name="hot", n=fp.count(), total=fp.sum("amount")),
        "visit": rows.key_by("user").window(fp.session("4 milliseconds")).agg(name="visit", n=fp.count()),
        "pairs": left.join(right, "user", within=("0 milliseconds", "6 milliseconds"), suffixes=("", "_right"), name="pairs"),
        "firsts": rows.dedup("user", "amount", name="firsts"),
        "best": rows.key_by("user").top(2, "amount desc, at", name="best"),
        "ordered": rows.key_by("user").process(InOrder(), name="ordered", in_order=fp.in_order()),
    }
    return together(outputs)


def together(outputs):
    first, *others = [each.write("memory", name=name) for name, each in outputs.items()]
    for other in others:
        first = first.also(other)
    return first


PIPELINES = {
    "chained": (chained, ("seen", "heights", "again", "gathered")),
    "brief": (brief, ("seen", "heights")),
    "timed": (timed, ("hot", "pairs", "ordered", "best")),
}
"""How each is built, and operators of it that are rescaled."""


class RescaledKit(PipelineKit):
    """Of task values only the sum counts: how they are by slot follows from what the driver has measured."""

    def outcome(self):
        found = super().outcome()
        for table in self.store.head.schemas:
            rows = self.state(table)
            if rows and SLOTS in rows[0]:
                assert len({row[SLOTS] for row in rows}) == 1
                found[f"table {table}"] = Counter({"sum": sum(row["value"] or 0 for row in rows)})
        return found
