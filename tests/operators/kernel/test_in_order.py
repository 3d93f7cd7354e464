"""Operators that see rows in the order of event time: the same as if exactly the rows that the watermark has passed had come,
sorted; whatever the order in which they do come."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import floodplain as fp

ROWS = "user string, at timestamp, n long"
START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST_MS = int(START.timestamp() * 1000)
LATE_MS = 3000

Build = Callable[[Any, Any], Any]
OPERATORS: dict[str, Build] = {
    "agg": lambda keyed, order: keyed.agg(total=fp.sum("n"), users=fp.count_distinct("n"), in_order=order),
    "agg, taking back": lambda keyed, order: keyed.agg(mode="retract", total=fp.sum("n"), in_order=order),
    "windows of rows": lambda keyed, order: keyed.window(fp.count_window(3, 2), in_order=order).agg(rows=fp.collect("n")),
    "windows of time": lambda keyed, order: keyed.window(fp.tumbling("4 seconds"), in_order=order).agg(rows=fp.collect("n")),
    "sessions": lambda keyed, order: keyed.window(fp.session("300 milliseconds"), in_order=order).agg(rows=fp.collect("n")),
    "dedup": lambda keyed, order: keyed.dedup("small", within="5 seconds", in_order=order),
    "top": lambda keyed, order: keyed.top(2, "n desc, at", mode="retract", in_order=order),
    "last": lambda keyed, order: keyed.last("n", mode="retract", in_order=order),
    "first": lambda keyed, order: keyed.first(mode="retract", in_order=order),
    "pivot": lambda keyed, order: keyed.pivot("small", [0, 1], "n", mode="retract", in_order=order),
}


def kit(name: str, order: Any) -> fp.PipelineKit:
    def build(stream: Any) -> Any:
        keyed = stream.watermark("at", "3 seconds").key_by("user")
        return OPERATORS[name](keyed, order).write("memory")

    return fp.PipelineKit(build, rows=f"{ROWS}, small long")


def row_at(at: int) -> dict[str, Any]:
    n = at * 7919 % 1009
    return {"user": f"u{at // 50 % 3}", "at": START + timedelta(milliseconds=at), "n": n, "small": n % 3}


def script(seed: int, epochs: int = 8) -> list[tuple[list[dict[str, Any]], int]]:
    """Rows as they come, up to three seconds late, and the watermark of the epoch."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.choice(np.arange(0, epochs * 2000, 50), epochs * 25, replace=False))
    times = times[np.argsort(times + rng.uniform(0, LATE_MS, len(times)))]
    found, newest = [], 0
    for part in np.array_split(times, epochs):
        newest = max(newest, int(part.max()))
        rows = [
            {"user": f"u{at // 50 % 3}", "at": START + timedelta(milliseconds=at), "n": at * 7919 % 1009} for at in part.tolist()
        ]
        found.append(([{**row, "small": row["n"] % 3} for row in rows], FIRST_MS + newest - LATE_MS))
    return [*found, ([], FIRST_MS + 10**6)]


def time_ms(row: dict[str, Any]) -> int:
    return int(row["at"].timestamp() * 1000)


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_are_seen_as_if_they_came_in_order(name):
    ordered, plain = kit(name, True), kit(name, False)
    waiting: list[dict[str, Any]] = []
    before_ms, made, differs = -1, 0, False
    for rows, watermark_ms in script(5):
        waiting += [row for row in rows if time_ms(row) > before_ms]
        passed = sorted((row for row in waiting if time_ms(row) <= watermark_ms), key=time_ms)
        waiting = [row for row in waiting if time_ms(row) > watermark_ms]
        found = ordered.epoch(rows, watermark_ms=watermark_ms)["output"]
        wanted = plain.epoch(passed, watermark_ms=watermark_ms)["output"]
        assert sorted(map(repr, found)) == sorted(map(repr, wanted))
        made, differs = made + len(found), differs or [time_ms(row) for row in rows] != [time_ms(row) for row in passed]
        before_ms = watermark_ms
    assert made >= 3 and differs and not waiting
    assert sum(progress.late for progress in ordered.progress) == 0


def test_windows_of_rows_are_other_ones_as_rows_come():
    ordered, plain = kit("windows of rows", True), kit("windows of rows", False)
    outs = [[each.epoch(rows, watermark_ms=at)["output"] for rows, at in script(5)] for each in (ordered, plain)]
    assert outs[0] != outs[1]


def test_a_bound_lets_rows_go_early():
    bounded = kit("agg", fp.in_order(rows=2))
    for rows, watermark_ms in script(5)[:3]:
        bounded.epoch(rows, watermark_ms=watermark_ms)
    assert sum(progress.early for progress in bounded.progress) > 0
    assert "in order of event time, up to 2 rows" in bounded.explain()


def test_rows_that_come_too_late_are_told():
    def build(stream: Any) -> Any:
        counted = (
            stream.watermark("at", "1 second").key_by("user").window(fp.tumbling("4 seconds"), in_order=True).agg(n=fp.count())
        )
        return counted.write("memory").also(counted.late().write("memory", name="late"))

    pipeline = fp.PipelineKit(build, rows=ROWS)
    pipeline.epoch([{"user": "a", "at": START, "n": 1}], watermark_ms=FIRST_MS + 2000)
    out = pipeline.epoch([{"user": "a", "at": START + timedelta(seconds=1), "n": 2}], watermark_ms=FIRST_MS + 4000)
    assert [(row["user"], row["n"]) for row in out["output"]] == [("a", 1)]
    assert [row["n"] for row in out["late"]] == [2] and "reason" in out["late"][0]


def test_lateness_and_order_exclude_each_other():
    with pytest.raises(fp.BadInput, match="give in_order or lateness, not both"):
        fp.PipelineKit(
            lambda s: s.watermark("at", "1 s").window(fp.tumbling("1 s"), lateness="1 s", in_order=True).agg(n=fp.count()),
            rows=ROWS,
        )


def test_they_survive_every_crash():
    steps = [fp.KitEpoch(rows[:6], watermark_ms=at) for rows, at in script(7, epochs=3)]
    assert fp.survives_every_crash(lambda: kit("windows of rows", True), steps) > 10
