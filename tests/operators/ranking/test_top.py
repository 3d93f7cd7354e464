"""The first N rows of each key against a loop in Python."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.eventtime.windows import tumbling
from floodplain.operators.aggregates.functions import count
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.testing.pipeline_kit import PipelineKit, survives_every_crash
from tests.operators.shaken import COLUMNS, Epoch, bag, cell, content, events, run, script

SCHEMA = pa.schema(
    {"user": pa.string(), "page": pa.string(), "price": pa.float64(), "seq": pa.int32(), "at": pa.int64()}
    | {"rank": pa.int64(), "weight": pa.int64()}
)
BY = "price desc, seq"


def updating(stream):
    return stream.key_by("user").top(3, BY).write("memory")


def retracting(stream):
    return stream.key_by("user").top(3, BY, mode="retract").write("memory")


def tying(stream):
    return stream.key_by("user").top(2, BY, mode="retract", ties=True).write("memory")


def unranked(stream):
    return stream.key_by("user").top(3, BY, mode="retract", rank=None).write("memory")


def by(row):
    """Descending with nulls last, then ascending with nulls first."""
    return (row["price"] is None, tuple(-n for n in cell(row["price"]))), cell(row["seq"])


def top(rows, count, ties=False):
    """Of the rows of one key."""
    found = sorted(rows, key=lambda row: (by(row), content(row, "price", "seq")))
    ranks = [next(n for n, other in enumerate(found) if by(other) == by(row)) if ties else at for at, row in enumerate(found)]
    return [{**row, "rank": rank + 1} for row, rank in zip(found, ranks, strict=True) if rank < count]


def tops(rows, count, ties=False):
    return [row for user in {row["user"] for row in rows} for row in top([r for r in rows if r["user"] == user], count, ties)]


@pytest.mark.parametrize("seed", range(4))
def test_updates_replace_the_row_of_a_rank(seed):
    given = events(seed)
    for shaken in (None, 1):
        seen, now = [], {}
        for epoch, out in zip(given, run(updating, given, shaken=shaken), strict=True):
            seen += epoch.rows
            before = dict(now)
            now |= {(row["user"], row["rank"]): row for row in out["output"]}
            assert bag(list(now.values())) == bag(tops(seen, 3))
            plain = bag(seen)
            for key in before:
                if before[key] is not now[key] and bag([before[key]]) == bag([now[key]]):
                    same = {name: value for name, value in now[key].items() if name != "rank"}
                    assert plain.count(bag([same])[0]) > 1, "given out again though nothing has changed"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("build", "count", "ties"), [(retracting, 3, False), (tying, 2, True), (unranked, 3, False)])
def test_what_was_there_before_is_taken_back(build, count, ties, seed):
    given = events(seed)
    for shaken in (None, 1):
        seen, changes = [], []
        for epoch, out in zip(given, run(build, given, shaken=shaken), strict=True):
            seen += epoch.rows
            changes += out["output"]
            expected = tops(seen, count, ties)
            schema = SCHEMA
            if build is unranked:
                schema = schema.remove(schema.get_field_index("rank"))
                expected = [{name: value for name, value in row.items() if name != "rank"} for row in expected]
            assert bag(fold_changes(pa.Table.from_pylist(changes, schema)).to_pylist()) == bag(expected)


def test_the_state_has_no_more_than_the_top_rows():
    kit = PipelineKit(updating, rows=COLUMNS)
    for epoch in events(5):
        kit.epoch(epoch.rows)
    assert max(len(row["rows"]) for row in kit.state("top")) == 3


WINDOWS = "window_end timestamp, user string, n long"


def per_window(stream):
    timed = stream.watermark("window_end", "0 seconds")
    top = timed.key_by("window_end").top(1, "n desc", mode="append", ties=True, until="window_end", rank=None)
    return top.write("memory").also(top.late().write("memory", name="late"))


def test_a_group_is_given_out_once_it_is_complete():
    kit = PipelineKit(per_window, rows=WINDOWS)

    def at(second, user, n):
        return {"window_end": second * 1_000_000, "user": user, "n": n}

    def found(out):
        return sorted((row["window_end"].second, row["user"], row["n"]) for row in out["output"])

    def epoch(*rows, watermark_ms):
        table = pa.Table.from_pylist(list(rows), pa.schema({"window_end": pa.int64(), "user": pa.string(), "n": pa.int64()}))
        ends = table["window_end"].cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
        return found(kit.epoch(table.set_column(0, "window_end", ends), watermark_ms=watermark_ms))

    assert epoch(at(10, "a", 5), at(10, "b", 5), at(10, "c", 4), at(20, "a", 1), watermark_ms=9_999) == []
    assert epoch(at(10, "d", 5), at(20, "b", 3), watermark_ms=10_000) == [(10, "a", 5), (10, "b", 5), (10, "d", 5)]
    assert epoch(at(10, "e", 9), watermark_ms=19_999) == []
    assert kit.progress[-1].late == 1
    assert [row["user"] for row in kit.sinks["late"].epochs[3].to_pylist()] == ["e"]
    kit.restart()
    assert epoch(at(20, "c", 2), watermark_ms=20_000) == [(20, "b", 3)]
    assert kit.state("top") == kit.state("top__event_timers") == []


def busiest(stream):
    """The users with the most rows in each window."""
    counts = stream.watermark("at", "1 second").key_by("user").window(tumbling("20 ms")).agg(n=count())
    top = counts.key_by("window_end").top(1, "n desc", mode="append", ties=True, until="window_end", rank=None)
    return top.write("memory").also(top.late().write("memory", name="late"))


@pytest.mark.parametrize("seed", range(3))
def test_the_top_of_windows_comes_when_they_end(seed):
    given = [*events(seed), Epoch([], 1_000)]
    counts: dict = {}
    for rows in windows_on_time(given, 20):
        for row in rows:
            window = counts.setdefault(row["at"] // 20 * 20, {})
            window[row["user"]] = window.get(row["user"], 0) + 1
    expected = [
        {"user": user, "start": start, "n": n}
        for start, window in counts.items()
        for user, n in window.items()
        if n == max(window.values())
    ]
    for shaken in (None, 1):
        outs = run(busiest, given, shaken=shaken)
        found = [
            {"user": row["user"], "start": as_ms(row["window_start"]), "n": row["n"]} for out in outs for row in out["output"]
        ]
        assert bag(found) == bag(expected)
        assert not any(out["late"] for out in outs)


def windows_on_time(given, size_ms):
    """The rows of each epoch whose window is still open."""
    before = [-(1 << 62), *(epoch.watermark_ms for epoch in given)]
    for epoch, late in zip(given, before, strict=False):
        yield [row for row in epoch.rows if row["at"] // size_ms * size_ms + size_ms > late]


def as_ms(time):
    return time if isinstance(time, int) else round(time.timestamp() * 1000)


@pytest.mark.parametrize("build", [updating, pytest.param(tying, marks=pytest.mark.soak)])
def test_crashes_change_nothing(build):
    given = events(3, epochs=3, size=12)
    assert survives_every_crash(lambda: PipelineKit(build, rows=COLUMNS), script(given)) > 10


def test_what_cannot_be_is_said_before_the_start():
    for build, message in [
        (lambda s: s.key_by("user").top(1, "user desc").write("memory"), "top: all rows of a key are equal in its keys"),
        (lambda s: s.top(3, "price").write("memory"), "top needs keys"),
        (lambda s: s.key_by("user").top(0, "price").write("memory"), "top\\(0\\) keeps no rows"),
        (lambda s: s.key_by("user").top(3, "").write("memory"), "names no column"),
        (lambda s: s.key_by("user").top(3, "cost desc").write("memory"), "no column cost to order by"),
        (lambda s: s.key_by("user").top(3, "price", mode="append").write("memory"), "goes with until"),
        (
            lambda s: s.key_by("user").top(3, "price", mode="append", until="page").write("memory"),
            "not a column of type timestamp",
        ),
        (lambda s: s.key_by("user").top(3, "price", ties=True).write("memory"), "with ties=True or rank=None"),
        (lambda s: s.key_by("user").top(3, "price", rank="seq").write("memory"), "the input has a column seq"),
        (lambda s: s.key_by("user").top(3, "price", mode="delete").write("memory"), "use 'append' or 'update' or 'retract'"),
    ]:
        with pytest.raises(BadInput, match=message):
            PipelineKit(build, rows=COLUMNS)
