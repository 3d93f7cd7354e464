"""Windows against a model in plain Python: out of order, over many epochs, with restarts and other numbers of slots."""

from collections import Counter

import pytest

import floodplain as fp
from floodplain.operators.kernel.late_rows import WHOLE
from floodplain.operators.windows.triggers import Rules
from floodplain.plan.nodes import Select
from tests.operators.windows.window_model import Model, Window, at, result, script

AGGREGATES = {
    "n": fp.count(),
    "total": fp.sum("v"),
    "high": fp.max("v"),
    "newest": fp.last("v"),
    "top": fp.top_k("v", 2),
    "different": fp.count_distinct("v"),
}
ROWS = "k string, ts timestamp, v long, unused string"
WINDOWS = {
    "tumbling": fp.tumbling("10 seconds"),
    "offset": fp.tumbling("7 seconds", offset="3 seconds"),
    "sliding": fp.sliding("10 seconds", "5 seconds"),
    "uneven": fp.sliding("9 seconds", "6 seconds"),
    "session": fp.session("3 seconds"),
    "short": fp.tumbling("1 second"),
    "long": fp.sliding("10 seconds", "1 second"),
}
RULES = {
    "on time": {},
    "late": {"lateness": "15 seconds"},
    "late, discarding": {"lateness": "15 seconds", "firing": "discarding"},
    "late, retracting": {"lateness": "15 seconds", "firing": "retracting"},
    "late by rows": {"lateness": "20 seconds", "late": fp.every_rows(3)},
    "late at intervals": {"lateness": "20 seconds", "late": fp.every("4 seconds", "event"), "firing": "discarding"},
    "early at long and late at short intervals": {
        "early": fp.every("10 seconds", "event"),
        "late": fp.every("1 second", "event"),
        "lateness": "20 seconds",
        "firing": "discarding",
    },
    "early at intervals of one clock and late of the other": {
        "early": fp.every("2 seconds"),
        "late": fp.every("3 seconds", "event"),
        "lateness": "20 seconds",
    },
    "early and late at intervals of processing time": {
        "early": fp.every("5 seconds"),
        "late": fp.every("2 seconds"),
        "lateness": "20 seconds",
        "firing": "retracting",
    },
    "very late": {"lateness": "120 seconds"},
    "very late, retracting": {"lateness": "120 seconds", "firing": "retracting", "early": fp.every("3 seconds")},
    "early": {"early": fp.every_epoch(), "lateness": "5 seconds"},
    "early by rows": {"early": fp.every_rows(4), "lateness": "5 seconds", "firing": "retracting"},
    "early by rows, discarding": {"early": fp.every_rows(4), "firing": "discarding"},
    "early at intervals": {"early": fp.every("2 seconds"), "lateness": "5 seconds"},
    "early at intervals, retracting": {"early": fp.every("3 seconds", "event"), "lateness": "5 seconds", "firing": "retracting"},
}


def kit_of(windows, options, slots=2, **aggregates):
    def build(stream):
        keyed = stream.watermark("ts", "0 seconds").key_by("k")
        return keyed.window(windows, **options).agg(**(aggregates or AGGREGATES)).write("memory")

    return fp.PipelineKit(build, rows=ROWS, slots=slots)


def rules_of(options) -> Rules:
    seconds = int(options.get("lateness", "0 seconds").split()[0])
    return Rules(
        seconds * 1000, options.get("early"), options.get("late", fp.every_epoch()), options.get("firing", "accumulating")
    )


def bag(rows) -> Counter:
    return Counter(tuple(tuple(value) if isinstance(value, list) else value for value in row.values()) for row in rows)


def rows_of(rows):
    return [{"k": key, "ts": at(ms), "v": value} for key, ms, value in rows]


FEW = ("on time", "late", "late, retracting", "early at intervals")
CASES = [(windows, options) for windows in ("tumbling", "session") for options in RULES]
CASES += [(windows, options) for windows in ("offset", "sliding", "uneven") for options in FEW]
CASES += [("uneven", "early at intervals of one clock and late of the other")]
CASES += [("sliding", "early at long and late at short intervals")]
CASES += [("short", "very late"), ("short", "very late, retracting"), ("long", "very late")]  # kept as entries of a map


@pytest.mark.parametrize(("windows", "options"), CASES)
def test_each_epoch_equals_the_model(windows, options):
    model = Model(WINDOWS[windows], rules_of(RULES[options]))
    kit = kit_of(WINDOWS[windows], RULES[options])
    for number, (rows, wm, now) in enumerate(script(len(options), epochs=7, rows=70)):
        if number == 3:
            kit.restart()
        if number == 5:
            kit.rescale(3)
        expected = model.epoch(rows, wm, now)
        found = bag(kit.epoch(rows_of(rows), watermark_ms=wm, now_ms=now)["output"])
        assert found == expected, f"epoch {number}: {found - expected} more, {expected - found} less"
    assert sum(progress.late for progress in kit.progress) == model.late
    assert kit.state("windows__windows" if windows in ("short", "long") else "windows") == []


def test_windows_of_rows():
    """Rows in the order of time within an epoch, however they came; windows overlap."""
    for size, slide in ((5, 5), (6, 4), (4, 1)):
        kit = kit_of(fp.count_window(size, slide), {}, n=fp.count(), all=fp.collect("v"))
        seen: dict[str, list] = {}
        for number, (rows, _, _) in enumerate(script(size, epochs=5, rows=60)):
            if number == 2:
                kit.restart()
                kit.rescale(3)
            # One row per key and time: of several the order would be open.
            rows = [
                (key, ms, number * 1000 + i) for i, (key, ms, _) in enumerate({(k, t): (k, t, 0) for k, t, _ in rows}.values())
            ]
            before = {key: len(found) for key, found in seen.items()}
            for key, ms, value in sorted(rows, key=lambda row: row[1]):
                seen.setdefault(key, []).append((ms, value))
            expected: Counter = Counter()
            for key, found in seen.items():
                for start in range(0, len(found) - size + 1, slide):
                    if start + size > before.get(key, 0):
                        window = found[start : start + size]
                        values = tuple(value for _, value in sorted(window))
                        expected[key, at(min(window)[0]), at(max(window)[0]), size, values] += 1
            assert bag(kit.epoch(rows_of(rows))["output"]) == expected
        kept = Counter(row["k"] for row in kit.state("windows"))
        assert all(count <= size for count in kept.values())


def test_the_global_window_gives_results_as_triggers_say():
    kit = kit_of(fp.global_window(), {"early": fp.every_rows(3), "firing": "discarding"}, n=fp.count())
    outs = [kit.epoch(rows_of([("a", 1, 1)] * count))["output"] for count in (2, 2, 1, 0, 5)]
    assert [[row["n"] for row in out] for out in outs] == [[], [4], [], [], [6]]
    assert outs[1] == [{"k": "a", "window_start": None, "window_end": None, "n": 4}]


TIMELESS = [{"k": "a", "ts": None, "v": 1}]


@pytest.mark.filterwarnings("error")
def test_windows_of_rows_take_rows_without_a_time():
    """The times of a window are those of the rows that have one; rows without a time follow them in their epoch."""
    kit = kit_of(fp.count_window(2), {}, n=fp.count(), first=fp.min("v"))
    given = [TIMELESS + rows_of([("a", 5, 2)]), TIMELESS * 2, TIMELESS, rows_of([("a", 7, 2)])]
    outs = [[tuple(row.values())[1:] for row in kit.epoch(rows, watermark_ms=1)["output"]] for rows in given]
    assert outs == [[(at(5), at(5), 2, 1)], [(None, None, 2, 1)], [], [(at(7), at(7), 2, 1)]]
    assert all(progress.late == 0 for progress in kit.progress)


@pytest.mark.parametrize("partial", [False, True])
def test_the_global_window_takes_rows_without_a_time(partial):
    def build(stream):
        keyed = stream.watermark("ts", "0 seconds").key_by("k")
        return keyed.window(fp.global_window(), early=fp.every_epoch()).agg(n=fp.count(), partial=partial).write("memory")

    kit = fp.PipelineKit(build, rows=ROWS)
    outs = [kit.epoch(TIMELESS + rows, watermark_ms=9_000)["output"] for rows in ([], rows_of([("a", 5, 1)]))]
    assert [[row["n"] for row in out] for out in outs] == [[1], [3]]


@pytest.mark.parametrize("windows", ["tumbling", "session"])
def test_in_order_too_windows_of_time_have_no_place_for_rows_without_one(windows):
    def build(stream):
        keyed = stream.watermark("ts", "0 seconds").key_by("k")
        counts = keyed.window(WINDOWS[windows], in_order=True).agg(n=fp.count())
        return counts.write("memory").also(counts.late().write("memory", name="late"))

    kit = fp.PipelineKit(build, rows=ROWS)
    out = kit.epoch(TIMELESS + rows_of([("a", 5, 1)]), watermark_ms=1)
    assert [row["reason"] for row in out["late"]] == ["has no time, and windows needs one"]
    assert [row["n"] for row in kit.epoch(watermark_ms=60_000)["output"]] == [1]


def test_without_keys_all_rows_are_one_group():
    def build(stream):
        return stream.watermark("ts", "0 seconds").window(fp.tumbling("10 seconds")).agg(n=fp.count()).write("memory")

    kit = fp.PipelineKit(build, rows=ROWS, slots=3)
    kit.epoch(rows_of([("a", 1, 1), ("b", 2, 1), ("c", 12_000, 1)]), watermark_ms=1)
    assert kit.epoch(watermark_ms=10_000)["output"] == [{"window_start": at(0), "window_end": at(10_000), "n": 2}]


BETWEEN = {
    "nothing": lambda counts, windows: counts.window(windows),
    "where": lambda counts, windows: counts.where("n > 0").window(windows),
    "with_column": lambda counts, windows: counts.with_column("x", "1").window(windows),
    "select": lambda counts, windows: counts.select("n", "window_end").window(windows),
    "key_by": lambda counts, windows: counts.key_by(g="1").window(windows),
    "renamed": lambda counts, windows: counts.select("n", ends="window_end").window(windows, on="ends"),
    "made anew": lambda counts, windows: counts.with_column("window_end", "window_end").where("n > 0").window(windows),
    "last": lambda counts, windows: counts.key_by("k", "window_end").last().window(windows),
}


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_window_of_windows_ends_with_them(between, partial):
    def build(stream):
        counts = stream.watermark("ts", "0 seconds").key_by("k").window(fp.tumbling("10 seconds")).agg(n=fp.count())
        every = BETWEEN[between](counts, fp.tumbling("20 seconds"))
        return every.agg(name="every", partial=partial, n=fp.sum("n"), keys=fp.count()).write("memory")

    kit = fp.PipelineKit(build, rows=ROWS)
    kit.epoch(rows_of([("a", 1, 1), ("b", 2, 1), ("b", 3, 1), ("c", 12_000, 1), ("c", 20_000, 1)]), watermark_ms=1)
    assert kit.epoch(watermark_ms=19_000)["output"] == []
    out = kit.epoch(watermark_ms=20_000)["output"]
    assert [{name: row[name] for name in row if name != "g"} for row in out] == [
        {"window_start": at(0), "window_end": at(20_000), "n": 4, "keys": 3}
    ]


@pytest.mark.parametrize(
    "between",
    [
        lambda counts: counts.with_column("window_end", "window_start"),
        lambda counts: counts.select("n", window_end="window_start"),
    ],
)
def test_another_time_under_the_name_of_the_end_is_no_end(between):
    """Windows that start at 0 and at 10 s are in the first 20 s, and the one that starts there is not."""

    def build(stream):
        counts = stream.watermark("ts", "0 seconds").key_by("k").window(fp.tumbling("10 seconds")).agg(n=fp.count())
        return (
            between(counts)
            .window(fp.tumbling("20 seconds"), lateness="20 seconds")
            .agg(name="every", n=fp.sum("n"))
            .write("memory")
        )

    kit = fp.PipelineKit(build, rows=ROWS)
    kit.epoch(rows_of([("a", 1, 1), ("b", 12_000, 1), ("b", 20_000, 1)]), watermark_ms=1)
    assert [(row["window_start"], row["n"]) for row in kit.epoch(watermark_ms=40_000)["output"]] == [(at(0), 2), (at(20_000), 1)]


def late_windows(*, read):
    def build(stream):
        keyed = stream.watermark("ts", "0 seconds").key_by("k")
        counts = keyed.window(fp.tumbling("10 seconds"), lateness="5 seconds").agg(n=fp.count(), high=fp.max("v"))
        output = counts.write("memory")
        return output.also(counts.late().write("memory", name="late")) if read else output

    return fp.PipelineKit(build, rows=ROWS)


def test_late_rows_of_windows_come_out_whole_with_a_reason():
    kit = late_windows(read=True)
    kit.epoch(rows_of([("a", 1, 1)]), watermark_ms=14_000)
    assert kit.epoch(rows_of([("a", 2, 5)]), watermark_ms=15_000)["output"][0]["n"] == 2
    rows = [{**row, "unused": "x"} for row in rows_of([("a", 3, 6), ("a", 10_000, 7)])]
    out = kit.epoch([*rows, {"k": "b", "ts": None, "v": 8}], watermark_ms=15_000)
    assert [list(row) for row in out["late"]] == [["k", "ts", "v", "unused", "reason"]] * 2
    assert sorted((row["k"], row["v"], row["unused"]) for row in out["late"]) == [("a", 6, "x"), ("b", 8, None)]
    assert {row["k"]: row["reason"] for row in out["late"]} == {
        "a": "late for windows by 14997 ms: the watermark was 1970-01-01T00:00:15.000Z",
        "b": "has no time, and windows needs one",
    }
    assert out["output"] == [] and kit.progress[-1].late == 2


def test_rows_are_exchanged_whole_only_where_late_ones_are_read():
    for read, more in ((False, []), (True, [WHOLE])):
        plan = late_windows(read=read)._plan
        (select,) = (node for node in plan.nodes if isinstance(node, Select))
        assert [name for name, _ in plan.columns(select)] == ["k", "ts", "v", *more]


def test_running_aggregates():
    def build(stream):
        timed = stream.watermark("ts", "0 seconds")
        keyed = timed.key_by("k")
        changes = keyed.agg(name="changes", mode="retract", high=fp.max("v")).write("memory", name="changes")
        return (
            keyed.agg(**AGGREGATES)
            .write("memory")
            .also(changes)
            .also(timed.agg(name="all_rows", n=fp.count()).write("memory", name="all"))
        )

    kit = fp.PipelineKit(build, rows=ROWS)
    seen: dict[str, list] = {}
    shown: dict[str, object] = {}
    for number, (rows, wm, now) in enumerate(script(5, epochs=6)):
        if number == 3:
            kit.restart()
            kit.rescale(4)
        for key, ms, value in rows:
            seen.setdefault(key, []).append((ms, value))
        out = kit.epoch(rows_of(rows), watermark_ms=wm, now_ms=now)
        keys = {key for key, _, _ in rows}
        expected = Counter((key, *result(Window(key, 0, 0), seen[key])[3:]) for key in keys)
        assert bag(out["output"]) == expected
        changes: Counter = Counter()
        for key in keys:
            high = max((value for _, value in seen[key] if value is not None), default=None)
            if key not in shown or shown[key] != high:
                changes[key, high, 1] += 1
                if key in shown:
                    changes[key, shown[key], -1] += 1
            shown[key] = high
        assert bag(out["changes"]) == changes
        assert [row["n"] for row in out["all"]] == ([sum(map(len, seen.values()))] if rows else [])


@pytest.mark.parametrize(
    "windows", ["session", pytest.param("tumbling", marks=pytest.mark.soak), pytest.param("sliding", marks=pytest.mark.soak)]
)
def test_survives_every_crash(windows):
    options = {"lateness": "5 seconds", "firing": "retracting"} if windows != "sliding" else {"lateness": "5 seconds"}
    steps = [
        fp.KitEpoch(rows_of(rows), watermark_ms=wm, now_ms=now, slots=3 if number == 2 else None)
        for number, (rows, wm, now) in enumerate(script(3, epochs=2, rows=20))
    ]
    assert fp.survives_every_crash(lambda: kit_of(WINDOWS[windows], options, n=fp.count(), high=fp.max("v")), steps) > 10


@pytest.mark.parametrize("windows", ["offset", "uneven", "running"])
def test_rows_put_together_before_the_exchange_give_the_same(windows):
    """And are counted as what they stand for, late ones too."""
    aggregates = {
        "n": fp.count(),
        "m": fp.count("v"),
        "total": fp.sum("v"),
        "mean": fp.avg("v"),
        "low": fp.min("v"),
        "newest": fp.last("v"),
        "odd": fp.count(where="odd"),
        "odd_total": fp.sum("v", where="odd"),
    }

    def kit_for(partial):
        def build(stream):
            keyed = stream.watermark("ts", "0 seconds").key_by("k")
            if windows == "running":
                return keyed.agg(partial=partial, **aggregates).write("memory")
            return keyed.window(WINDOWS[windows], lateness="5 seconds").agg(partial=partial, **aggregates).write("memory")

        return fp.PipelineKit(build, rows="k string, ts timestamp, v long, odd boolean")

    whole, together = kit_for(False), kit_for(True)
    for rows, wm, now in script(8, epochs=6, rows=90):
        given = [{**row, "odd": None if row["v"] is None else row["v"] % 2 == 1} for row in rows_of(rows)]
        outs = [bag(kit.epoch(given, watermark_ms=wm, now_ms=now)["output"]) for kit in (whole, together)]
        assert outs[0] == outs[1]
    for mine, other in zip(whole.progress, together.progress, strict=True):
        assert (mine.rows, mine.late) == (other.rows, other.late)
    assert windows == "running" or sum(progress.late for progress in whole.progress) > 0
