"""Averages of decimals: exact, in Spark's type, in all the forms that aggregates have."""

from collections import defaultdict
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from random import Random

import numpy as np
import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.aggregates.decimals import quotients
from floodplain.operators.kernel.segments import TooLarge
from tests.operators.aggregates.test_functions import aggregated

KINDS = [(1, 0), (7, 2), (18, 0), (18, 18), (20, 10), (30, 4), (33, 20), (36, 30), (38, 37), (38, 38)]
ROWS = "u string, page string, v decimal(10,2), ts timestamp, seq long"
FORMS = {
    "running": (lambda s, partial: s.key_by("page").agg(mean=fp.avg("v"), partial=partial), None),
    "tumbling": (lambda s, partial: s.key_by("page").window(fp.tumbling("1 hour")).agg(mean=fp.avg("v"), partial=partial), 10**9),
    "sliding": (
        lambda s, partial: s.key_by("page").window(fp.sliding("2 hours", "1 hour")).agg(mean=fp.avg("v"), partial=partial),
        10**9,
    ),
    "session": (lambda s, partial: s.key_by("page").window(fp.session("1 hour")).agg(mean=fp.avg("v")), 10**9),
    "retracting": (
        lambda s, partial: (
            s.key_by("u").last("seq", mode="retract").key_by("page").agg(mean=fp.avg("v"), mode="retract", partial=partial)
        ),
        None,
    ),
}


def numbers(random, precision, scale, count):
    """Small ones and, where they cannot overflow, large ones; nulls among them."""
    found = []
    for _ in range(count):
        digits = random.choice([1, 3, max(precision - 6, 1)]) if precision > 30 else random.randint(1, precision)
        found.append(None if random.random() < 0.1 else Decimal(random.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale))
    return found


def mean(values, scale):
    """By rational arithmetic."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    with localcontext(prec=200):
        return (sum(values) / len(values)).quantize(Decimal(1).scaleb(-min(scale + 4, 38)), ROUND_HALF_UP)


@pytest.mark.parametrize(("precision", "scale"), KINDS)
def test_an_average_is_exact_and_has_sparks_type(precision, scale):
    with localcontext(prec=100):
        random = Random(precision * 100 + scale)
        values = numbers(random, precision, scale, 300)
    type_ = pa.decimal128(precision, scale)
    rows = pa.table({"g": np.arange(300) % 7, "v": pa.array(values, type_), "t": np.arange(300)})
    expected = {g: {"x": mean(values[g::7], scale)} for g in range(7)}
    for parts in (1, 5):
        assert aggregated(rows, {"x": fp.avg("v")}, parts) == expected
    assert fp.avg("v").output([type_]) == pa.decimal128(min(precision + 4, 38), min(scale + 4, 38))


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_aggregates_take_decimals(form, partial):
    step, end_s = FORMS[form]
    random = Random(3)
    kit = fp.PipelineKit(lambda s: step(s.watermark("ts", "0 s"), partial).write("memory"), rows=ROWS)
    newest, pages, held = {}, defaultdict(list), {}
    for seq in range(6):
        rows = []
        for value in numbers(random, 10, 2, 12):
            user, page = random.choice("abcd"), random.choice("xy")
            rows.append({"u": user, "page": page, "v": value, "ts": datetime.fromtimestamp(seq, UTC), "seq": seq})
        rows = list({(row["u"]): row for row in rows}.values()) if form == "retracting" else rows
        for row in rows:
            newest[row["u"]] = row
            pages[row["page"]].append(row["v"])
        for row in kit.epoch(rows)["output"]:
            held[row["page"]] = row["mean"] if row.get("weight", 1) == 1 else held.get(row["page"])
    if end_s is not None:
        kit.tick(now_ms=1, watermark_ms=end_s * 1000)
        # The end comes without rows: what it gives is the last that the sink got.
        held = {row["page"]: row["mean"] for row in kit.sinks["output"].epochs[kit.store.head.epoch].to_pylist()}
    if form == "retracting":
        pages = defaultdict(list)
        for row in newest.values():
            pages[row["page"]].append(row["v"])
    expected = {page: mean(values, 2) for page, values in pages.items()}
    assert {page: found for page, found in held.items() if page in expected} == expected
    assert kit.schemas["output"].field("mean").type == pa.decimal128(14, 6)


def test_an_average_beyond_38_digits_is_refused_by_name():
    rows = "u string, v decimal(38,2)"
    kit = fp.PipelineKit(lambda s: s.key_by("u").agg(mean=fp.avg("v")).write("memory"), rows=rows)
    assert kit.epoch([{"u": "a", "v": Decimal("1.25")}])["output"] == [{"u": "a", "mean": Decimal("1.250000")}]
    with pytest.raises(fp.UserError, match=r"operator aggregate, epoch 2.*aggregate mean: an average has more than 38 digits"):
        kit.epoch([{"u": "a", "v": Decimal(10**35)}])


def test_counts_and_totals_of_any_size_divide_exactly():
    random = Random(5)
    totals = [random.choice([-1, 1]) * random.randint(0, 10 ** random.randint(1, 33)) for _ in range(500)]
    counts = [random.randint(0, 10 ** random.randint(0, 18)) for _ in range(500)]
    with localcontext(prec=100):
        column = pa.array([None, *(Decimal(total).scaleb(-2) for total in totals)], pa.decimal128(38, 2)).slice(1)
        expected = [
            None if not count else (Decimal(total).scaleb(-2) / count).quantize(Decimal("0.000001"), ROUND_HALF_UP)
            for total, count in zip(totals, counts, strict=True)
        ]
    assert quotients(column, np.array(counts)).to_pylist() == expected
    with pytest.raises(TooLarge):
        quotients(pa.array([Decimal(10**35)], pa.decimal128(38, 2)), np.array([1]))
