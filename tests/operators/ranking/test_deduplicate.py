"""Deduplication against a loop in Python."""

import pytest

from floodplain.errors import BadInput
from floodplain.testing.pipeline_kit import PipelineKit, survives_every_crash
from tests.operators.shaken import COLUMNS, bag, cell, content, events, on_time, run, script


def once(stream):
    return stream.watermark("at", "1 second").dedup("user").write("memory")


def within(stream):
    return stream.watermark("at", "1 second").key_by("user").dedup("page", within="20 ms").write("memory")


def by_price(stream):
    return stream.key_by("user").dedup(by="price desc").write("memory")


def naive(epochs, keys, order, within_ms=None):
    """Epoch by epoch, row by row in order: what is given out."""
    free: dict[tuple, float] = {}
    for rows in epochs:
        out = []
        for row in sorted(rows, key=order):
            key = tuple(row[name] for name in keys)
            if row["at"] >= free.get(key, float("-inf")):
                free[key] = float("inf") if within_ms is None else row["at"] + within_ms
                out.append(row)
        yield out


def by_time(row):
    return row["at"], *content(row, "at")


@pytest.mark.parametrize("seed", range(4))
def test_the_first_row_of_each_key(seed):
    given = events(seed, users=30)
    expected = list(naive([epoch.rows for epoch in given], ["user"], by_time))
    for shaken in (None, 1, 2):
        assert [bag(out["output"]) for out in run(once, given, shaken=shaken)] == [bag(rows) for rows in expected]


@pytest.mark.parametrize("seed", range(4))
def test_a_row_counts_again_after_a_while(seed):
    given = events(seed, epochs=10)
    expected = list(naive(on_time(given), ["user", "page"], lambda row: (row["at"], *content(row, "at", "page")), 20))
    assert sum(map(len, expected)) > len({(row["user"], row["page"]) for rows in on_time(given) for row in rows})
    for shaken in (None, 1, 2):
        assert [bag(out["output"]) for out in run(within, given, shaken=shaken)] == [bag(rows) for rows in expected]


def test_the_first_by_another_column():
    given = events(11)
    order = lambda row: (row["price"] is None, tuple(-n for n in cell(row["price"])), *content(row, "price"))  # noqa: E731
    expected = list(naive([epoch.rows for epoch in given], ["user"], order))
    assert [bag(out["output"]) for out in run(by_price, given, shaken=5)] == [bag(rows) for rows in expected]


def test_keys_are_forgotten_once_nothing_can_repeat_them():
    kit = PipelineKit(within, rows=COLUMNS)
    row = {"user": "u", "page": "a", "price": 1.0, "seq": 1}
    assert kit.epoch([{**row, "at": 5}], watermark_ms=0)["output"]
    assert kit.epoch([{**row, "at": 24}, {**row, "at": 5}], watermark_ms=4)["output"] == []
    assert [row["at_ms"] for row in kit.state("dedup")] == [5]
    assert kit.epoch([{**row, "at": 25}], watermark_ms=4)["output"] == [{**row, "at": 25}]
    kit.epoch(watermark_ms=25)
    assert [row["at_ms"] for row in kit.state("dedup")] == [25]
    kit.epoch(watermark_ms=45)
    assert kit.state("dedup") == kit.state("dedup__event_timers") == []


def test_crashes_change_nothing():
    def both(stream):
        timed = stream.watermark("at", "1 second")
        return timed.dedup("user").write("memory").also(timed.dedup("user", within="20 ms", name="again").write("memory"))

    given = events(3, epochs=2, size=12)
    assert survives_every_crash(lambda: PipelineKit(both, rows=COLUMNS), script(given)) > 20


def test_what_cannot_be_is_said_before_the_start():
    for build, message in [
        (lambda s: s.dedup().write("memory"), "dedup needs keys"),
        (lambda s: s.dedup("user", within="1 hour").write("memory"), "within is a length of event time, and the rows have none"),
        (lambda s: s.dedup("user", by="cost").write("memory"), "no column cost to order by; there are: user, page"),
        (lambda s: s.dedup("user", by="price * 2").write("memory"), "not an order of columns at 'price \\* 2'"),
        (lambda s: s.dedup("user", keep="best").write("memory"), "keep='best' is not known"),
    ]:
        with pytest.raises(BadInput, match=message):
            PipelineKit(build, rows=COLUMNS)


def test_behind_another_operator_a_late_row_is_not_given_out_again():
    """What it repeats is forgotten by then: it is late, and counted."""

    def behind(stream):
        given = stream.watermark("at", "1 second").key_by("user").last()
        out = given.dedup("page", within="20 ms")
        newest = given.key_by("page").last(ttl="20 ms", name="newest")
        late = out.late().write("memory", name="late")
        return out.write("memory").also(newest.write("memory", name="newest")).also(late)

    kit = PipelineKit(behind, rows=COLUMNS)
    row = {"user": "u", "page": "a", "price": 1.0, "seq": 1, "at": 5}
    assert kit.epoch([row], watermark_ms=1)["output"] == [row]
    kit.epoch(watermark_ms=50)
    for user in ("v", "w"):
        out = kit.epoch([{**row, "user": user}], watermark_ms=50)
        assert out["output"] == out["newest"] == [] and [late["user"] for late in out["late"]] == [user]
        assert kit.progress[-1].late_by == {"dedup": 1, "newest": 1}
    assert kit.state("dedup") == []


def test_rows_without_a_time_are_given_out_once():
    kit = PipelineKit(within, rows=COLUMNS)
    row = {"user": "u", "page": "a", "price": 1.0, "seq": 1}
    assert kit.epoch([{**row, "at": None}], watermark_ms=30)["output"] == [{**row, "at": None}]
    assert kit.epoch([{**row, "at": None}], watermark_ms=49)["output"] == []
    assert kit.epoch([{**row, "at": 50}], watermark_ms=49)["output"] == [{**row, "at": 50}], "it repeats nothing that has a time"
    assert kit.epoch([{**row, "at": None}], watermark_ms=69)["output"] == []
    kit.epoch(watermark_ms=70)
    assert kit.state("dedup") == kit.state("dedup__event_timers") == []
    early = PipelineKit(within, rows=COLUMNS)
    assert [bool(early.epoch([{**row, "at": None}], watermark_ms=at)["output"]) for at in (0, 0, 40, 60)] == [True, *[False] * 3]
