"""Operators downstream of a changelog: whatever is retracted, their result is that of the rows that remain."""

from collections import defaultdict
from decimal import Decimal
from math import inf
from random import Random

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.testing.pipeline_kit import PipelineKit
from tests.operators.shaken import NAN, bag

COLUMNS = "user string, page string, price double, cost decimal(10,2), seq int, good boolean, at long"
FIRST = {
    "last": lambda s: s.key_by("user", "seq").last(mode="retract", name="one"),
    "first": lambda s: s.key_by("user", "good").first("price desc", mode="retract", name="one"),
    "top": lambda s: s.key_by("user").top(3, "price desc", ties=True, mode="retract", rank=None, name="one"),
    "agg": lambda s: s.key_by("user", "page").agg(
        mode="retract",
        name="one",
        price=fp.max("price"),
        cost=fp.sum("cost"),
        seq=fp.count("seq"),
        good=fp.last("good"),
        at=fp.max("at"),
    ),
    "windows": lambda s: (
        s.key_by("user", "page")
        .window(fp.session("15 milliseconds"), lateness="200 milliseconds", early=fp.every_epoch(), firing="retracting")
        .agg(price=fp.min("price"), cost=fp.max("cost"), seq=fp.max("seq"), good=fp.first("good"), at=fp.max("at"), name="one")
    ),
    "join": lambda s: s.where("page = 'a'").join(s.where("page = 'b'").select("user", other="seq"), "user", "full", name="one"),
}
AGGREGATES = {
    "n": fp.count(),
    "fine": fp.count("seq", where="good"),
    "total": fp.sum("price"),
    "costs": fp.sum("cost"),
    "seqs": fp.sum("seq", where="good"),
    "mean": fp.avg("price"),
    "low": fp.min("price"),
    "high": fp.max("price", where="good"),
    "users": fp.count_distinct("user"),
    "dearest": fp.max_by("user", "price"),
    "newest": fp.last("user", by="at"),
    "seq": fp.top_k("seq", 2),
    "every": fp.collect("seq", by="seq"),
}
SECOND = {
    "last": lambda s: s.key_by("page").last("at, price", mode="retract", name="two_0"),
    "first": lambda s: s.key_by("page").first("seq", mode="retract", name="two_1"),
    "top": lambda s: s.key_by("page").top(3, "price desc, seq", mode="retract", name="two_2"),
    "ties": lambda s: s.key_by("page", "good").top(2, "seq", ties=True, mode="retract", name="two_3"),
    "no rank": lambda s: s.key_by("good").top(4, "at desc", rank=None, mode="retract", name="two_4"),
}


def events(seed, epochs=4, size=24):
    """Few values, so that there are ties and duplicates; keys recur, so that there are many retractions."""
    rng = Random(seed)
    return [
        [
            {
                "user": rng.choice(["u", "v", "w", "x", "y", None]),
                "page": rng.choice(["a", "b", None]),
                "price": rng.choice([1.5, -2.0, 7.25, NAN, None, -0.0, 0.0, inf, -inf]),
                "cost": rng.choice([Decimal("1.25"), Decimal("-3.50"), None]),
                "seq": rng.choice([1, 2, 3, None]),
                "good": rng.choice([True, False, None]),
                "at": number * 25 + rng.randrange(60),
            }
            for _ in range(rng.randrange(size // 3, size))
        ]
        for number in range(epochs)
    ]


def chained(first, *more, **options):
    """Both what comes of the first and of the others are written."""

    def build(stream):
        rows = first(stream.watermark("at", "1 second"))
        output = rows.write("memory", name="one")
        for number, second in enumerate(more):
            output = output.also(second(rows, **options).write("memory", name=f"two_{number}"))
        return output

    return build


def run(build, given, shaken):
    """All that came out of each up to each epoch, as tables."""
    kit, rng = PipelineKit(build, rows=COLUMNS), Random(shaken)
    found = {name: [schema.empty_table()] for name, schema in kit.schemas.items()}
    for number, rows in enumerate(given):
        if shaken:
            kit.rescale(rng.choice([1, 2, 3, 5]))
            if rng.random() < 0.5:
                kit.restart()
        for name, out in kit.epoch(rng.sample(rows, len(rows)), watermark_ms=number * 25).items():
            found[name].append(pa.Table.from_pylist(out, kit.schemas[name]))
        yield {name: pa.concat_tables(tables) for name, tables in found.items()}


def known(values):
    return [value for value in values if value is not None]


def place(value):
    """NaN is above all numbers, null below."""
    return (value is not None, value != value, 0 if value is None or value != value else value)


def summed(values):
    there = known(values)
    return sum(there) if there else None


def aggregated(rows):
    """The aggregates of some rows by plain Python."""
    good = [row for row in rows if row["good"]]
    prices, seqs = known(row["price"] for row in rows), sorted(known(row["seq"] for row in rows))
    priced = [row for row in rows if row["price"] is not None]
    dearest = max((row for row in priced), key=lambda row: (place(row["price"]), place(row["user"])), default={})
    timed = [row for row in rows if row["at"] is not None]
    newest = max(timed, key=lambda row: (row["at"], place(row["user"])), default={})
    return {
        "n": len(rows),
        "fine": len(known(row["seq"] for row in good)),
        "total": summed(prices),
        "costs": summed(row["cost"] for row in rows),
        "seqs": summed(row["seq"] for row in good),
        "mean": sum(prices) / len(prices) if prices else None,
        "low": min(prices, key=place, default=None),
        "high": max(known(row["price"] for row in good), key=place, default=None),
        "users": len(set(known(row["user"] for row in rows))),
        "dearest": dearest.get("user"),
        "newest": newest.get("user"),
        "seq": seqs[:-3:-1],
        "every": seqs,
    }


def by_page(rows):
    pages = defaultdict(list)
    for row in rows:
        pages[row["page"]].append(row)
    return [{"page": page, **aggregated(some)} for page, some in pages.items()]


@pytest.mark.parametrize("first", FIRST)
def test_aggregates_are_those_of_the_rows_that_are_left(first, seed=1):
    def agg(stream, mode):
        return stream.key_by("page").agg(mode=mode, name=f"agg_{mode}", **AGGREGATES)

    build = chained(FIRST[first], lambda s: agg(s, "retract"), lambda s: agg(s, "update"))
    for found in run(build, events(seed), seed):
        expected = by_page(fold_changes(found["one"]).to_pylist())
        assert bag(fold_changes(found["two_0"]).to_pylist()) == bag(expected)
        now = fold_changes(found["two_1"], ["page"]).to_pylist()
        assert bag([row for row in now if row["n"]]) == bag(expected)
        assert all(row == {"page": row["page"], **aggregated([])} for row in now if not row["n"])
    assert -1 in found["one"]["weight"].to_pylist(), "nothing was taken back"


@pytest.mark.parametrize("first", FIRST)
def test_the_rows_that_are_left_come_up(first, seed=2):
    """Compared with the same operators that get just those rows, as plain ones."""
    build = chained(FIRST[first], *SECOND.values())
    for number, found in enumerate(run(build, events(seed), seed)):
        if number % 2:
            rows = fold_changes(found["one"])
            plain = PipelineKit(chained(lambda s: s, *SECOND.values()), rows={"": rows.schema})
            for name, given in plain.epoch(rows).items():
                changes = pa.Table.from_pylist(given, plain.schemas[name])
                now = fold_changes(changes) if name != "one" else changes
                assert bag(fold_changes(found[name]).to_pylist()) == bag(now.to_pylist()), name
    assert -1 in found["one"]["weight"].to_pylist(), "nothing was taken back"


def test_changes_of_changes_of_changes():
    def most(stream):
        counts = stream.key_by("page", "user").agg(mode="retract", n=fp.count(), high=fp.max("at"))
        return counts.where("high > 30").key_by("n").top(1, "high desc", mode="retract").select("n", "page", "user", "weight")

    for found in run(chained(FIRST["last"], most), events(5), 3):
        groups = defaultdict(list)
        for row in fold_changes(found["one"]).to_pylist():
            groups[row["page"], row["user"]].append(row["at"])
        first = {}
        for page, user in sorted(groups, key=lambda key: (-max(groups[key]), *map(place, key))):
            if max(groups[page, user]) > 30:
                first.setdefault(len(groups[page, user]), {"page": page, "user": user})
        assert bag(fold_changes(found["two_0"]).to_pylist()) == bag([{"n": n, **row} for n, row in first.items()])
    assert -1 in found["two_0"]["weight"].to_pylist()


def newest(stream):
    return stream.watermark("at", "1 second").key_by("user").last(mode="retract")


def on(user, page, at, **more):
    return {"user": user, "page": page, "at": at, **more}


def test_a_row_is_taken_back_however_old_it_is():
    """A retraction has the time of the row that it retracts, which the watermark may have passed long ago."""
    kit = PipelineKit(lambda s: newest(s).key_by("page").agg(n=fp.count()).write("memory"), rows=COLUMNS)
    assert kit.epoch([on("u", "a", 1000)], watermark_ms=1000) == {"output": [{"page": "a", "n": 1}]}
    now = kit.epoch([on("u", "b", 9000)], watermark_ms=9000)["output"]
    assert bag(now) == bag([{"page": "a", "n": 0}, {"page": "b", "n": 1}])
    assert [progress.late_by for progress in kit.progress] == [{}, {}]


def test_nothing_is_left_of_keys_without_rows():
    def build(stream):
        pages = newest(stream).key_by("page")
        aggregates = pages.agg(n=fp.count(), high=fp.max("seq")).write("memory")
        return aggregates.also(pages.top(1, "seq", mode="retract").write("memory", name="top"))

    kit = PipelineKit(build, rows=COLUMNS)
    for number, page in enumerate("abcab"):
        kit.epoch([on("u", page, number, seq=number)])
    for table in ("aggregate", "aggregate__values_now", "top__rows_now"):
        assert [row["page"] for row in kit.state(table)] == ["b"]


@pytest.mark.parametrize("odd", [NAN, inf, -inf])
def test_numbers_that_are_none_can_be_taken_off_a_sum(odd):
    kit = PipelineKit(
        lambda s: newest(s).key_by("page").agg(total=fp.sum("price"), mean=fp.avg("price")).write("memory"), rows=COLUMNS
    )
    (row,) = kit.epoch([on("u", "a", 1, price=odd), on("v", "a", 1, price=2.5), on("w", "a", 1, price=None)])["output"]
    assert bag([row]) == bag([{"page": "a", "total": odd, "mean": odd}])
    rows = kit.epoch([on("u", "b", 2, price=1.0)])["output"]
    assert {"page": "a", "total": 2.5, "mean": 2.5} in rows


def test_rows_put_together_before_the_exchange_are_taken_back_alike():
    def build(stream, partial):
        named = {"n": fp.count(), "costs": fp.sum("cost"), "seqs": fp.avg("seq", where="good")}
        return FIRST["last"](stream.watermark("at", "1 second")).key_by("page").agg(partial=partial, **named).write("memory")

    kits = [PipelineKit(lambda s, partial=partial: build(s, partial), rows=COLUMNS) for partial in (True, False)]
    for rows in events(8):
        one, other = (kit.epoch(rows)["output"] for kit in kits)
        assert bag(one) == bag(other)


def test_as_rows_makes_every_change_a_row():
    def build(stream):
        rows = newest(stream).as_rows()
        cities = rows.key_by("page").agg(n=fp.count(), users=fp.sum("weight")).write("memory")
        return cities.also(rows.where("weight = 1").select("user").write("memory", name="came"))

    kit = PipelineKit(build, rows=COLUMNS)
    kit.epoch([on("u", "a", 1)])
    found = kit.epoch([on("u", "a", 2)])
    assert found == {"output": [{"page": "a", "n": 3, "users": 1}], "came": [{"user": "u"}]}


def test_only_what_changes_comes_out():
    def build(stream):
        pages = newest(stream).key_by("page")
        rows = pages.top(2, "seq", rank=None, mode="retract").select("user", "weight")
        return rows.write("memory").also(pages.agg(mode="retract", high=fp.max("price")).write("memory", name="high"))

    kit = PipelineKit(build, rows=COLUMNS)
    first = kit.epoch([on("u", "a", 1, seq=2), on("v", "a", 1, seq=3)])
    assert bag(first["output"]) == bag([{"user": "u", "weight": 1}, {"user": "v", "weight": 1}])
    assert first["high"] == [{"page": "a", "high": None, "weight": 1}], "there are rows, if no prices"
    assert kit.epoch([on("v", "a", 2, seq=1)]) == {
        "output": [{"user": "v", "weight": -1}, {"user": "v", "weight": 1}],
        "high": [],
    }
    gone = kit.epoch([on("u", "b", 3, seq=1), on("v", "b", 3, seq=1)])["high"]
    assert bag(gone) == bag([{"page": "a", "high": None, "weight": -1}, {"page": "b", "high": None, "weight": 1}])
