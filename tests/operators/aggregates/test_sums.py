"""Sums that do not fit their type: never silently wrong, and told with operator, epoch, aggregate and key."""

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.aggregates.scalar import summed
from floodplain.operators.kernel.segments import Groups, TooLarge

HALF = 1 << 62
ROWS = "u string, v long, d decimal(38,2), ts timestamp"
AGG = {"n": fp.count(), "total": fp.sum("v")}
STEPS = {
    "aggregate": lambda s, partial: s.agg(partial=partial, **AGG),
    "tumbling": lambda s, partial: s.window(fp.tumbling("10 s")).agg(partial=partial, **AGG),
    "sliding": lambda s, partial: s.window(fp.sliding("10 s", "5 s")).agg(partial=partial, **AGG),
    "early": lambda s, partial: s.window(fp.sliding("10 s", "5 s"), early=fp.every_epoch()).agg(partial=partial, **AGG),
    "session": lambda s, partial: s.window(fp.session("10 s")).agg(**AGG),
    "rows": lambda s, partial: s.window(fp.count_window(4)).agg(**AGG),
    "pivot": lambda s, partial: s.pivot("u", {"a": "total", "b": "other"}, "v", repeats="sum"),
    "changes": lambda s, partial: s.key_by("u", "ts").last(mode="retract").key_by("u").agg(partial=partial, **AGG),
    "decimal": lambda s, partial: s.agg(partial=partial, total=fp.sum("d")),
    "decimal pivot": lambda s, partial: s.pivot("u", {"a": "total"}, "d", repeats="sum"),
}


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC)


def row(user, value, seconds=1):
    digits = Decimal(value) * 2 * 10**17
    return {"u": user, "v": value, "d": digits, "ts": at(seconds)}


def kit_of(step, partial):
    return fp.PipelineKit(lambda s: STEPS[step](s.watermark("ts", "0 s").key_by("u"), partial).write("memory"), rows=ROWS)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_sum_beyond_its_type_names_operator_epoch_aggregate_and_key(step, partial):
    name = "pivot" if "pivot" in step else "aggregate" if step in ("aggregate", "changes", "decimal") else "windows"
    what = "column total" if "pivot" in step else "aggregate total"
    told = f"operator {name}, epoch %s, key Key\\(u='a'\\): {what}: a sum (overflows a long|does not fit decimal)"
    apart, together = kit_of(step, partial), kit_of(step, partial)
    apart.epoch([row("b", 1), row("a", HALF), row("c", -3)], watermark_ms=1)
    with pytest.raises(fp.UserError, match=told % 2):
        apart.epoch([row("c", 1), row("a", HALF, 2)] + [row("a", 1, 2)] * 2, watermark_ms=1)
    with pytest.raises(fp.UserError, match=told % 1):
        together.epoch([row("b", 1), row("a", HALF), row("a", HALF, 2), row("c", 1)] + [row("a", 1, 2)] * 2, watermark_ms=1)


@pytest.mark.parametrize("step", ["aggregate", "pivot"])
def test_what_fits_is_summed_to_the_last_digit(step):
    kit = kit_of(step, False)
    out = kit.epoch([row("a", HALF), row("a", HALF - 1), row("b", -HALF), row("b", -HALF)])["output"]
    found = {each["u"]: each["total"] if step == "aggregate" or each["u"] == "a" else each["other"] for each in out}
    assert found == {"a": 2**63 - 1, "b": -(2**63)}


def test_sums_of_any_longs_are_exact_or_refused():
    rng = np.random.default_rng(1)
    for _ in range(200):
        values = rng.choice(
            [2**63 - 1, -(2**63), HALF, -HALF, 1, -1, 0, int(rng.integers(-(2**63), 2**63 - 1))], int(rng.integers(1, 7))
        )
        exact, groups = sum(map(int, values)), Groups(np.zeros(1, np.int64), len(values))
        if -(2**63) <= exact < 2**63:
            assert summed(pa.array(values), groups).to_pylist() == [exact]
        else:
            with pytest.raises(TooLarge):
                summed(pa.array(values), groups)


def test_a_sum_of_decimals_may_have_all_digits_and_no_more():
    most, groups = Decimal(10**38 - 10**30), Groups(np.array([0, 1]), 3)
    column = pa.array([Decimal(1), Decimal(10**38 - 10**30 - 1), Decimal(1)], pa.decimal128(38, 0))
    assert summed(column, groups).to_pylist() == [1, most]
    with pytest.raises(TooLarge) as told:
        summed(pa.array([Decimal(1), most, most], pa.decimal128(38, 0)), groups)
    assert told.value.group == 1
    with pytest.raises(TooLarge):
        summed(pa.array([Decimal(1), Decimal(99), Decimal(1)], pa.decimal128(2, 0)), groups)
