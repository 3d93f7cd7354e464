"""Processors of chains. Spark's workers and ours import them."""

import datetime

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

ROWS = "k string, n long, at timestamp"
UTC = datetime.UTC


def at(ms):
    return datetime.datetime.fromtimestamp(ms / 1000, UTC)


class Echo(StatefulProcessor):
    """Gives out each row with a number, and 5 seconds later, by event time, a row with the count of the key."""

    def __init__(self, *, timed=True):
        self.timed = timed

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.seen = handle.getListState("seen", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.count.get() or (0,))[0]
        for row in sorted(rows, key=lambda row: (row.at, row.n)):
            n += 1
            self.seen.appendValue((row.n,))
            if self.timed:
                self.handle.registerTimer(int(row.at.timestamp() * 1000) + 5000)
            yield Row(k=key[0], n=row.n + n, at=row.at)
        self.count.update((n,))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        expired = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key[0], n=-self.count.get()[0], at=at(expired))

    def close(self):
        pass


class Totals(StatefulProcessor):
    """Gives out the running total of each key, and what it has by then when a timer of its own is due."""

    def __init__(self, *, timed=True):
        self.timed = timed

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("count", "total long")
        self.last = handle.getMapState("last", "n long", "times long")

    def handleInputRows(self, key, rows, timerValues):
        total = (self.total.get() or (0,))[0]
        for row in rows:
            total += row.n
            times = self.last.getValue((row.n,)) if self.last.containsKey((row.n,)) else (0,)
            self.last.updateValue((row.n,), (times[0] + 1,))
            if self.timed:
                self.handle.registerTimer(int(row.at.timestamp() * 1000) + 2000)
        self.total.update((total,))
        yield Row(what=f"{key[0]} has {total} of {len(list(self.last.keys()))}", watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(what=f"{key[0]} at {at_ms}: {self.total.get()[0]}", watermark=timerValues.getCurrentWatermarkInMs())

    def close(self):
        pass


class Frames(StatefulProcessor):
    """As ``Totals``, of frames."""

    def init(self, handle):
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key, rows, timerValues):
        total = (self.total.get() or (0,))[0] + sum(int(frame.n.sum()) for frame in rows)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def close(self):
        pass


class Counted(StatefulProcessor):
    """Counts rows of any columns; begins with what an initial state says, and anew if the count has another name."""

    def __init__(self, schema="n long"):
        self.schema = schema

    def init(self, handle):
        self.total = handle.getValueState("total", self.schema)

    def handleInputRows(self, key, rows, timerValues):
        total = ((self.total.get() or (0,))[0] or 0) + len(list(rows))
        self.total.update((total,))
        yield Row(k=str(key[0]), n=total)

    def handleInitialState(self, key, initialState, timerValues):
        self.total.update((initialState.start,))

    def close(self):
        pass
