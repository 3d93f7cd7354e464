"""The last and the first row of each key against a loop in Python."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.testing.pipeline_kit import PipelineKit, survives_every_crash
from tests.operators.shaken import COLUMNS, bag, cell, content, events, run, script

SCHEMA = pa.schema(
    {"user": pa.string(), "page": pa.string(), "price": pa.float64(), "seq": pa.int32(), "at": pa.int64(), "weight": pa.int64()}
)


def last(stream):
    timed = stream.watermark("at", "1 second").key_by("user")
    return timed.last().write("memory").also(timed.last(mode="retract", name="retracting").write("memory", name="weighed"))


def first(stream):
    by_price = stream.key_by("user")
    again = by_price.first(by="price desc, seq", mode="retract", name="retracting").write("memory", name="weighed")
    return by_price.first(by="price desc, seq").write("memory").also(again)


def latest(row):
    return row["at"], *content(row, "at")


def dearest_first(row):
    """Smallest counts; a row without price or seq yields."""
    price = (row["price"] is None, tuple(-n for n in cell(row["price"])))
    return price, (row["seq"] is None, cell(row["seq"])), *content(row, "price", "seq")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("build", "best", "order"), [(last, max, latest), (first, min, dearest_first)])
def test_the_row_of_each_key_is_known_after_each_epoch(build, best, order, seed):
    given = events(seed)
    for shaken in (None, 1):
        seen: dict = {}
        updates: dict = {}
        changes = SCHEMA.empty_table()
        for epoch, out in zip(given, run(build, given, shaken=shaken), strict=True):
            for row in epoch.rows:
                seen[row["user"]] = row if row["user"] not in seen else best(seen[row["user"]], row, key=order)
            updates |= {row["user"]: row for row in out["output"]}
            assert len({row["user"] for row in out["output"]}) == len(out["output"])
            changes = pa.concat_tables([changes, pa.Table.from_pylist(out["weighed"], SCHEMA)])
            assert bag(list(updates.values())) == bag(list(seen.values()))
            assert bag(fold_changes(changes).to_pylist()) == bag(list(seen.values()))


def test_only_what_changes_comes_out():
    kit = PipelineKit(last, rows=COLUMNS)
    row = {"user": "u", "page": "a", "price": 1.0, "seq": 1, "at": 50}
    assert kit.epoch([row])["output"] == [row]
    assert kit.epoch([row, {**row, "at": 20}]) == {"output": [], "weighed": []}
    newer = {**row, "at": 51, "page": None}
    out = kit.epoch([newer])
    assert out["output"] == [newer]
    assert out["weighed"] == [{**row, "weight": -1}, {**newer, "weight": 1}]


def test_a_key_is_forgotten_after_its_time_to_live():
    kit = PipelineKit(lambda s: s.watermark("at", "1 s").dedup("user", keep="last", within="10 ms").write("memory"), rows=COLUMNS)
    row = {"user": "u", "page": "a", "price": 1.0, "seq": 1, "at": 5}
    kit.epoch([row], watermark_ms=1)
    assert kit.epoch([{**row, "at": 4}], watermark_ms=3)["output"] == []
    kit.epoch(watermark_ms=11)
    assert kit.epoch([{**row, "at": 12}], watermark_ms=11)["output"] == [{**row, "at": 12}]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda s, **o: s.last(**o), [[2], [3], []]),
        (lambda s, **o: s.first(**o), [[1], [], [0]]),
        (lambda s, **o: s.last("user, seq", **o), [[2], [3], []]),
        (lambda s, **o: s.top(1, "at, seq desc", **o), [[2], [3], []]),
        (lambda s, **o: s.last(mode="retract").key_by("user", "at").top(1, "at, seq", mode="retract", **o), [[2], [2, 3], []]),
    ],
)
def test_rows_may_go_by_a_key(step, expected, partial):
    """As by event time, where that is a key: then all rows of it are alike in that, and their other columns decide."""
    keyed = {"rows": "user string, at long, seq long", "slots": 1}
    kit = PipelineKit(lambda s: step(s.watermark("at", "1 s").key_by("user", "at"), partial=partial).write("memory"), **keyed)
    outs = [kit.epoch([{"user": "u", "at": 5, "seq": seq} for seq in some])["output"] for some in ((1, 2), (3,), (0,))]
    assert [sorted(row["seq"] for row in out) for out in outs] == expected


@pytest.mark.soak
def test_crashes_change_nothing():
    given = events(3, epochs=3, size=12)
    assert survives_every_crash(lambda: PipelineKit(last, rows=COLUMNS), script(given)) > 20


def test_what_cannot_be_is_said_before_the_start():
    for build, rows, message in [
        (lambda s: s.key_by("user").last().write("memory"), COLUMNS, "no event time: say by which column"),
        (lambda s: s.key_by("user").last("at", mode="append").write("memory"), COLUMNS, "mode='append' is not possible here"),
        (lambda s: s.key_by("user").last("at", ttl="1 hour").write("memory"), COLUMNS, "forgotten by event time, and the rows"),
        (lambda s: s.key_by("user").last("user").write("memory"), "user string", "no columns but the keys user"),
        (lambda s: s.key_by("user").last("t").write("memory"), "user string, t struct<x: long>", "which has no order"),
        (lambda s: s.key_by("u").last("weight", mode="retract").write("memory"), "u string, weight long", "has a column weight"),
    ]:
        with pytest.raises(BadInput, match=message):
            PipelineKit(build, rows=rows)
