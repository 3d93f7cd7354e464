"""Aggregates that users write: in pipelines, with an ``__init__`` of their own, and what is wrong with them is told by name."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodplain as fp
from tests.operators.windows.test_windows import ROWS, WINDOWS, rows_of
from tests.operators.windows.window_model import script


class Spread(fp.Aggregate):
    """The greatest value less the least, times a factor."""

    def __init__(self, column, where=None, *, factor=1):
        super().__init__((column,), where)
        self.factor = factor

    def output(self, types):
        return pa.int64()

    def partial(self, types):
        return types[0], types[0]

    def of(self, columns, groups: fp.Groups):
        return fp.min("x").of(columns, groups) + fp.max("x").of(columns, groups)

    def combine(self, partials, groups: fp.Groups):
        return fp.min("x").of(partials[:1], groups) + fp.max("x").of(partials[1:], groups)

    def result(self, partials):
        return pc.multiply(pc.subtract(partials[1], partials[0]), self.factor)


class Product(fp.Aggregate):
    """Without an ``__init__``, and by NumPy: the product of all values."""

    def output(self, types):
        return pa.float64()

    def partial(self, types):
        return (pa.float64(),)

    def of(self, columns, groups):
        return [pa.array(groups.reduced(np.multiply, columns[0].fill_null(1).cast(pa.float64()).to_numpy()))]

    def combine(self, partials, groups):
        return self.of(partials, groups)


NAMED = {
    "low": fp.min("v"),
    "high": fp.max("v"),
    "spread": Spread("v"),
    "twice": Spread("v", factor=2),
    "some": Spread("v", "many"),
    "some_high": fp.max("v", where="many"),
    "some_low": fp.min("v", where="many"),
    "product": Product("v"),
    "values": fp.collect("v"),
}


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("windows", ["tumbling", "sliding", "session", None])
def test_they_work_as_ours_do(windows, partial):
    def build(stream):
        keyed = stream.watermark("ts", "0 seconds").key_by("k")
        asked = keyed if windows is None else keyed.window(WINDOWS[windows], lateness="5 seconds")
        return asked.agg(partial=partial, **NAMED).write("memory")

    kit, seen = fp.PipelineKit(build, rows=f"{ROWS}, many boolean"), Counter()
    for number, (rows, wm, now) in enumerate(script(4, epochs=4, rows=50)):
        if number == 2:
            kit.restart()
        given = [{**row, "many": (row["v"] or 0) > 3} for row in rows_of(rows)]
        for row in kit.epoch(given, watermark_ms=wm, now_ms=now)["output"]:
            empty, none = row["high"] is None, row["some_high"] is None
            assert row["spread"] == (None if empty else row["high"] - row["low"])
            assert row["twice"] == (None if empty else 2 * row["spread"])
            assert row["some"] == (None if none else row["some_high"] - row["some_low"])
            assert row["product"] == float(np.prod(row["values"] or [1.0]))
            seen.update(name for name in ("spread", "some") if row[name])
    assert seen["spread"] > 5 and seen["some"] > 5


class NoCombine(fp.Aggregate):
    output, partial, of = Spread.output, Spread.partial, Spread.of


class NoArguments(Spread):
    def __init__(self):
        pass


class OneColumn(Spread):
    def of(self, columns, groups):
        return super().of(columns, groups)[:1]


class Fails(Spread):
    def of(self, columns, groups):
        raise ValueError("as it likes")


def test_what_is_wrong_with_one_is_told_by_its_name():
    def kit(aggregate):
        return fp.PipelineKit(lambda s: s.key_by("k").agg(mine=aggregate).write("memory"), rows=ROWS)

    with pytest.raises(fp.BadInput, match="aggregate mine: NoCombine does not define combine"):
        kit(NoCombine("v"))
    with pytest.raises(fp.BadInput, match="aggregate mine: NoArguments has no output type for no arguments: IndexError"):
        kit(NoArguments())
    rows = rows_of([("a", 1, 1)])
    with pytest.raises(fp.UserError, match=r"epoch 1: aggregate mine: OneColumn gave columns of \[1\] partials, not of \[1, 1\]"):
        kit(OneColumn("v")).epoch(rows)
    with pytest.raises(fp.UserError, match="operator aggregate, epoch 1: ValueError in aggregate mine: as it likes"):
        kit(Fails("v")).epoch(rows)
