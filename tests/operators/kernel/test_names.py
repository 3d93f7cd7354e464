"""Columns of users with names that internal columns might have: the results are those under another name."""

from datetime import UTC, datetime

import pytest

import floodplain as fp


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC)


def late(windowed):
    counts = windowed.agg(n=fp.sum("5"), m=fp.sum("v"), first=fp.first("v"))
    return counts.write("memory").also(counts.late().write("memory", name="late"))


STEPS = {
    "agg": lambda s, key: s.key_by(key).agg(n=fp.sum("5"), m=fp.sum("v"), last=fp.last("v"), partial=True).write("memory"),
    "agg of it": lambda s, key: s.agg(n=fp.count(key), m=fp.max(key), fives=fp.sum("5"), partial=True).write("memory"),
    "in order": lambda s, key: s.key_by(key).agg(n=fp.sum("5"), m=fp.sum("v"), in_order=True).write("memory"),
    "window": lambda s, key: (
        s.key_by(key).window(fp.tumbling("1 s"), firing="retracting").agg(n=fp.sum("5"), partial=True).write("memory")
    ),
    "late": lambda s, key: late(s.key_by(key).window(fp.tumbling("1 s"))),
    "join": lambda s, key: s.join(s.select(key, ts="ts", w="v"), key, within=("0 s", "1 s"), suffixes=("", "_r")).write("memory"),
    "join for ever": lambda s, key: s.join(s.select(key, w="v"), key, "left").write("memory"),
}


NAMES = {
    "agg": ["_1", "_2", "_all", "_partial_0", "_group_0", "_rows"],
    "agg of it": ["_1", "_2", "_all", "_rows"],
    "in order": ["_2"],
    "window": ["_1", "_all", "_partial_0"],
    "late": ["_all", "_whole_row", "reason_"],
    "join": ["_at", "_right_side", "_left", "_right"],
    "join for ever": ["_at", "_right_side"],
}


def played(step, name):
    """What comes out in each epoch, with the column of this name as it would be called ``k``."""
    kit = fp.PipelineKit(
        lambda s: STEPS[step](s.watermark("ts", "0 s"), name), rows=f"`{name}` string, ts timestamp, v long", slots=1
    )
    rows = [{name: key, "ts": at(second), "v": second} for key, second in (("a", 1), ("b", 2), ("a", 3))]
    outs = [kit.epoch(rows, watermark_ms=1), kit.epoch(watermark_ms=60_000), kit.epoch(rows, watermark_ms=60_000)]
    named = [
        sorted(str([("k" if column == name else column, value) for column, value in row.items()]) for row in rows)
        for out in outs
        for rows in out.values()
    ]
    assert any(named)
    return named


@pytest.mark.parametrize("step", STEPS)
def test_no_name_is_taken_for_one_of_ours(step):
    expected = played(step, "k")
    for name in NAMES[step]:
        assert played(step, name) == expected, name


def test_a_column_of_an_expression_has_a_name_of_its_own():
    """As Spark calls the columns of a tuple."""
    kit = fp.PipelineKit(
        lambda s: (
            s.key_by("_1")
            .agg(n=fp.sum("5"), m=fp.sum("_2"), few=fp.count(where="_3"), all=fp.count(where="true"))
            .write("memory")
        ),
        rows="_1 string, _2 long, _3 boolean",
    )
    out = kit.epoch([{"_1": key, "_2": number, "_3": number > 1} for key, number in (("a", 1), ("a", 2), ("b", 3))])["output"]
    assert sorted(map(tuple, map(dict.values, out))) == [("a", 10, 3, 1, 2), ("b", 5, 3, 1, 1)]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.key_by("k").agg(n=fp.count()), "input: column _Floodplain_x: names that start with _floodplain_"),
        (lambda s: s.select(_floodplain_1="k"), "select: column _floodplain_1"),
        (lambda s: s.with_column("_floodplain_all", "1"), "with_column: column _floodplain_all"),
        (lambda s: s.key_by(_floodplain_all="k"), "key_by: column _floodplain_all"),
        (lambda s: s.key_by("k").agg(_floodplain_n=fp.count()), "operator aggregate: column _floodplain_n"),
        (lambda s: s.key_by("rows_seen").agg(n=fp.count()), "agg: a key is called rows_seen"),
        (
            lambda s: s.key_by("k").window(fp.tumbling("1 s")).agg(_n=fp.count()),
            "cannot be called _n: .* names that start with _ are reserved",
        ),
        (lambda s: s.key_by("waiting_rows").last(in_order=True), "operator last, in_order: a key is called waiting_rows"),
        (
            lambda s: s.join(s.select("reason", at="ts"), "reason", within=("0 s", "1 s"), times=("ts", "at")),
            "join: a key is called reason",
        ),
    ],
)
def test_what_is_ours_is_refused(build, text):
    names = "rows_seen", "waiting_rows", "reason"
    rows = "k string, ts timestamp, " + ", ".join(f"{name} string" for name in names)
    reserved = rows + ", _Floodplain_x string" if text.startswith("input") else rows
    with pytest.raises(fp.BadInput, match=text):
        fp.PipelineKit(lambda s: build(s.watermark("ts", "0 s")).write("memory"), rows=reserved)


def test_a_transform_cannot_take_a_name_of_ours():
    with pytest.raises(fp.BadInput, match="transform: column _floodplain_at"):
        fp.PipelineKit(
            lambda s: s.transform(lambda rows: rows).write("memory"),
            rows="k string",
            transforms=[lambda rows: rows.rename_columns(["_floodplain_at"])],
        )


def test_a_join_of_rows_with_a_side_and_a_reason():
    """As orders have: what late rows say of themselves has another name then."""

    def build(stream):
        stream = stream.watermark("ts", "0 s")
        pairs = stream.source("orders").join(stream.source("fills"), "id", within=("0 s", "1 s"), suffixes=("", "_fill"))
        return pairs.write("memory").also(pairs.late().write("memory", name="late"))

    kit = fp.PipelineKit(
        build, rows={"orders": "id long, ts timestamp, side string", "fills": "id long, ts timestamp, reason string"}
    )
    rows = [
        {"source": "orders", "id": 1, "ts": at(1), "side": "buy"},
        {"source": "fills", "id": 1, "ts": at(1), "reason": "matched"},
    ]
    out = kit.epoch(rows, watermark_ms=60_000)["output"]
    assert out == [{"id": 1, "ts": at(1), "side": "buy", "ts_fill": at(1), "reason": "matched"}]
    told = [
        (row["side_"], row["side"], row["reason"], row["reason_"][:13]) for row in kit.epoch(rows, watermark_ms=60_000)["late"]
    ]
    assert sorted(told) == [("left", "buy", None, "late for join"), ("right", None, "matched", "late for join")]
