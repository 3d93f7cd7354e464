"""Processors for the drop-in tests. Spark's workers and ours import them.

``Interpreter`` runs what its rows say: each row has expressions over the states, and what they give is the output.
"""

import datetime
import decimal
import time

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructType

INPUT = "n long, k string, g int, ops array<string>, at timestamp"
OUTPUT = "k string, n long, op string, out string"
LONG = StructType().add("n", LongType())
ALLOWED_NAMES = ("_x", "x y", "ä", "\u00a0x", "a.b/c", "Default", "x$")
LATER_MS = 10**15
"""A processing time that no test lives to see."""


class Interpreter(StatefulProcessor):
    def __init__(self, *, ttl=False):
        self.ttl = ttl

    def init(self, handle):
        self.names = {
            "handle": handle,
            "count": handle.getValueState("countState", "n long"),
            "pair": handle.getValueState("a pair, with Blanks", "n int, s string"),
            "items": handle.getListState("items", "n long"),
            "pairs": handle.getListState("pairs", "n long, s string"),
            "words": handle.getMapState("wordsByKey", "w string", "n long, s string"),
            "plan": handle.getMapState("plan", "at long", "op string"),
            "types": handle.getValueState(
                "types",
                "ts timestamp, d date, b binary, a array<int>, m map<string, int>, st struct<x: int, y: string>, "
                "c decimal(10,2), f float, i short, t byte, nt timestamp_ntz, ok boolean",
            ),
            "arrays": handle.getValueState("arrays", "a array<long>"),
            "arrayItems": handle.getListState("arrayItems", "a array<long>"),
            "arrayWords": handle.getMapState("arrayWords", "w string", "a array<long>"),
            "np": np,
            "datetime": datetime,
            "Decimal": decimal.Decimal,
            "Row": Row,
            "time": time,
            "LATER": LATER_MS,
        }
        if self.ttl:
            self.names |= {
                "brief": handle.getValueState("brief", "n long", 1),
                "briefItems": handle.getListState("briefItems", "n long", 1),
                "briefWords": handle.getMapState("briefWords", "w string", "n long", 1),
                "lasting": handle.getValueState("lasting", "n long", 10**10),
                "lastingItems": handle.getListState("lastingItems", "n long", 10**10),
                "lastingWords": handle.getMapState("lastingWords", "w string", "n long", 10**10),
                "untimed": handle.getValueState("untimed", "n long", 0),
            }

    def arm(self, at, op):
        self.names["handle"].registerTimer(at)
        self.names["plan"].updateValue((at,), (op,))

    def run(self, key, n, ops, times, **more):
        scope = {
            **self.names,
            "arm": self.arm,
            "key": tuple(key),
            "watermark": times.getCurrentWatermarkInMs(),
            "timed": times.getCurrentProcessingTimeInMs() > 0,
            **more,
        }
        for op in ops:
            try:
                out = repr(eval(op, scope))
            except (TypeError, ValueError, AttributeError, StopIteration) as error:
                out = f"!{type(error).__name__}"
            yield Row(k=repr(tuple(key)), n=n, op=op, out=out)

    def rows(self, key, rows, times):
        for row in sorted(rows, key=lambda row: row.n):
            yield from self.run(key, row.n, row.ops, times, row_type=type(row.k).__name__)

    def expired(self, key, times, at):
        planned = self.names["plan"].getValue((at,))
        ops = ["at"] if planned is None else planned[0].split(";")
        yield from self.run(key, -1, ops, times, at=at, key_type=type(key).__name__)

    def handleInputRows(self, key, rows, timerValues):
        return self.rows(key, rows, timerValues)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self.expired(key, timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def handleInitialState(self, key, initialState, timerValues):
        self.names["items"].appendValue((initialState.start,))
        self.names["words"].updateValue((initialState.word,), (initialState.start, str(tuple(initialState))))


class PandasInterpreter(Interpreter):
    def handleInputRows(self, key, rows, timerValues):
        given = [row for frame in rows for row in frame.itertuples(index=False)]
        yield self.frame(self.rows(key, given, timerValues))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.frame(self.expired(key, timerValues, expiredTimerInfo.getExpiryTimeInMs()))

    def handleInitialState(self, key, initialState, timerValues):
        for row in initialState.itertuples(index=False):
            super().handleInitialState(key, row, timerValues)

    def frame(self, rows):
        return pd.DataFrame([tuple(row) for row in rows], columns=["k", "n", "op", "out"])


class Wrong(StatefulProcessor):
    """Does one thing that is refused."""

    def __init__(self, init="pass", rows="pass", close="pass", give="iter([])"):
        self.code = init, rows, close, give

    def init(self, handle):
        self.handle = handle
        self.in_task = False
        self.value = handle.getValueState("v", LONG)
        self.items = handle.getListState("l", LONG)
        self.map = handle.getMapState("m", LONG, LONG)
        self.run(self.code[0])

    def run(self, code):
        names = {"handle": self.handle, "v": self.value, "l": self.items, "m": self.map, "LONG": LONG, "Decimal": decimal.Decimal}
        exec(code, {"self": self, **names})

    def handleInputRows(self, key, rows, timerValues):
        self.in_task = True
        self.run(self.code[1])
        return eval(self.code[3], {"Row": Row})

    def close(self):
        self.run(self.code[2])


class Deleted(StatefulProcessor):
    """Makes calls on states that it has deleted, and tells what they give or raise."""

    def __init__(self, calls):
        self.calls = calls

    def init(self, handle):
        self.states = {
            "v": handle.getValueState("v", LONG),
            "l": handle.getListState("l", LONG),
            "m": handle.getMapState("m", LONG, LONG),
        }
        for name in self.states:
            handle.deleteIfExists(name)

    def tell(self, call):
        try:
            return repr(eval(call, dict(self.states)))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def handleInputRows(self, key, rows, timerValues):
        for call in self.calls:
            yield Row(user=call, what=self.tell(call))


class Sizes(StatefulProcessor):
    """Tells how many rows come with each call."""

    def init(self, handle):
        self.initial = {}

    def note(self, key, size):
        self.initial.setdefault(key, []).append(str(size))

    def noted(self, key):
        return ",".join(self.initial.pop(key, []))

    def handleInitialState(self, key, initialState, timerValues):
        self.note(key, 1)

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=key[0], sizes=f"{self.noted(key)};{len(list(rows))}")


class PandasSizes(Sizes):
    """Tells how many rows each frame has."""

    def handleInitialState(self, key, initialState, timerValues):
        self.note(key, len(initialState))

    def handleInputRows(self, key, rows, timerValues):
        sizes = f"{self.noted(key)};{','.join(str(len(frame)) for frame in rows)}"
        yield pd.DataFrame({"k": [key[0]], "sizes": [sizes]})


class Declaring(StatefulProcessor):
    """Declares states, each given as its kind and the arguments of the call, and does nothing."""

    def __init__(self, *states):
        self.states = states

    def init(self, handle):
        calls = {"value": handle.getValueState, "list": handle.getListState, "map": handle.getMapState}
        for kind, *arguments in self.states:
            calls[kind](*arguments)

    def handleInputRows(self, key, rows, timerValues):
        return iter([])
