"""Steps that come before operators: columns chosen, unions of streams, several readers of one output."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.expressions.comparison import Comparison, comparison
from floodplain.operators.joins.columns import PACKED
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Extend, Input, Select, Union
from floodplain.plan.single_scan import OnePass, one_pass
from floodplain.testing.pipeline_kit import PipelineKit
from tests.processes import Tally

USERS = [f"user{number}" for number in range(40)]
ROWS = [{"user": user, "amount": number % 7} for number, user in enumerate(USERS)]


class ByUser(KeyedProcess):
    output = "user string, rows long"

    def process(self, key, rows, ctx):
        yield key.user, len(rows)


class ByN(KeyedProcess):
    output = "n long, rows long"

    def process(self, key, rows, ctx):
        yield key.n, len(rows)


class Widest(KeyedProcess, OperatorTraits):
    """Gives out what it is given: its output depends on its input."""

    def __init__(self, output: pa.Schema | None = None) -> None:
        if output is not None:
            self.output = output
            self.side_outputs = {"first": output}

    def bind(self, rows, keys, event_time):
        return Widest(rows)

    def process(self, key, rows, ctx):
        ctx.emit("first", tuple(rows[0]))
        yield from map(tuple, rows)


def test_operators_with_other_keys_read_the_same_output():
    def build(stream: Stream):
        tally = stream.key_by("user").process(Tally())
        by_n = tally.key_by("n").process(ByN()).write("memory", name="by_n")
        return tally.key_by("user").process(ByUser()).write("memory", name="by_user").also(by_n)

    out = PipelineKit(build, rows="user string, amount long", slots=4).epoch(ROWS)
    assert sorted(row["user"] for row in out["by_user"]) == sorted(USERS)
    assert out["by_n"] == [{"n": 1, "rows": len(USERS)}]


def test_columns_are_chosen_and_made():
    def build(stream: Stream):
        return stream.select("user", n="amount", one="1", word="'x'", gone="null").write("memory")

    out = PipelineKit(build, rows="user string, amount long").epoch(ROWS[:1])["output"]
    assert out == [{"user": "user0", "n": 0, "one": 1, "word": "x", "gone": None}]
    with pytest.raises(BadInput, match="amount \\* 2 needs Spark"):
        PipelineKit(lambda stream: stream.select(n="amount * 2").write("memory"), rows="user string, amount long")
    with pytest.raises(BadInput, match="there is no column nobody; there are: user, amount"):
        PipelineKit(lambda stream: stream.select("nobody").write("memory"), rows="user string, amount long")
    with pytest.raises(BadInput, match="at least one column"):
        PipelineKit(lambda stream: stream.select().write("memory"), rows="user string, amount long")


def test_the_rows_of_one_source_have_its_columns():
    kit = PipelineKit(
        lambda stream: stream.source("clicks").write("memory"), rows={"clicks": "ad long, at long", "shown": "ad long, width int"}
    )
    out = kit.epoch([{"ad": 1, "at": 5, "source": "clicks"}, {"ad": 2, "width": 3, "source": "shown"}])["output"]
    assert out == [{"ad": 1, "at": 5}]
    with pytest.raises(BadInput, match="no source 'views'; there are: clicks, shown"):
        PipelineKit(lambda stream: stream.source("views").write("memory"), rows={"clicks": "ad long", "shown": "ad long"})


def test_streams_are_put_together():
    def build(stream: Stream):
        tally = stream.key_by("user").process(Tally())
        both = Union((tally.select("user", n="n").node, stream.select("user", amount="amount").node))
        return Stream(stream.runtime, stream.sources, both, {}).write("memory")

    out = PipelineKit(build, rows="user string, amount long").epoch(ROWS[:2])["output"]
    assert sorted(out, key=repr) == sorted(
        [{"user": user, "n": 1, "amount": None} for user in USERS[:2]]
        + [{"user": user, "n": None, "amount": number} for number, user in enumerate(USERS[:2])],
        key=repr,
    )


def test_an_output_that_depends_on_the_input():
    def build(stream: Stream):
        widest = stream.key_by("user").process(Widest())
        return widest.write("memory").also(widest.side("first").write("memory", name="first"))

    out = PipelineKit(build, rows="user string, amount long").epoch(ROWS)
    assert sorted(row["user"] for row in out["output"]) == sorted(row["user"] for row in out["first"]) == sorted(USERS)
    with pytest.raises(BadInput, match="widest has no side output 'last'; it has: first"):
        PipelineKit(lambda s: s.key_by("user").process(Widest()).side("last").write("memory"), rows="user string, amount long")


class ByAd(KeyedProcess):
    output = "ad long, rows long"

    def process(self, key, rows, ctx):
        yield key.ad, len(rows)


SIDES = {"shown": "ad long, width long, at long", "clicks": "ad long, limit long"}
SHOWN = [{"ad": ad, "width": ad % 5, "at": ad, "source": "shown"} for ad in range(30)]
CLICKS = [{"ad": ad, "limit": 2, "source": "clicks"} for ad in range(0, 40, 2)]


def test_two_sources_are_joined_in_one_pass_over_the_input():
    unions = []

    def build(stream: Stream):
        narrow = stream.source("clicks").select(key="ad", most="limit")
        joined = stream.source("shown").join(narrow, on={"ad": "key"})
        unions.append(joined.node.parent)
        return joined.write("memory")

    out = PipelineKit(build, rows=SIDES).epoch(SHOWN + CLICKS)["output"]
    assert sorted(row["ad"] for row in out) == list(range(0, 30, 2))
    assert all(row["most"] == 2 and row["at"] == row["ad"] for row in out)
    found = one_pass(unions[0])
    assert found is not None and found.column == "source" and [part.value for part in found.parts] == ["shown", "clicks"]
    assert found.where() == "`source` in ('shown', 'clicks')"
    assert (
        "case when `source` = 'shown' then (`ad`) when `source` = 'clicks' then (`ad`) end as `ad`" in found.sql()
        and f"case when `source` = 'clicks' then struct(`limit` as `most`) end as `{PACKED['right']}`" in found.sql()
    )


def test_what_takes_more_than_names_is_not_done_in_one_pass():
    def union(left, right) -> OnePass | None:
        found = []

        def build(stream: Stream):
            joined = left(stream).join(right(stream), on={"ad": "key"})
            found.append(joined.node.parent)
            return joined.write("memory")

        PipelineKit(build, rows=SIDES)
        return one_pass(found[0])

    def clicks(stream: Stream) -> Stream:
        return stream.source("clicks").select(key="ad")

    assert union(lambda stream: stream.source("shown"), clicks) is not None
    assert union(lambda stream: stream.source("shown").where("width < at"), clicks) is None
    assert union(lambda stream: stream.source("shown"), lambda stream: stream.source("shown").select(key="ad")) is None
    assert union(lambda stream: stream.select("ad", "at"), lambda stream: stream.select(key="ad")) is None


EVENTS = "kind string, ad long, width long, limit long"


def kinds(first: str, second: str, *more: str) -> tuple[OnePass | None, list[dict]]:
    """Rows of one stream that are told apart so, joined: whether in one pass, and what came out."""
    found = []

    def build(stream: Stream):
        left, right = stream.where(first), stream.where(second)
        for condition in more:
            left = left.where(condition)
        joined = left.select("ad", "width").join(right.select("limit", key="ad"), on={"ad": "key"})
        found.append(one_pass(joined.node.parent))
        return joined.write("memory")

    rows = [{"kind": "shown", "ad": ad, "width": ad % 5} for ad in range(30)]
    rows += [{"kind": kind, "ad": ad, "limit": 2} for kind in ("click", "Click") for ad in range(0, 40, 2)]
    out = PipelineKit(build, rows=EVENTS).epoch(rows)["output"]
    return found[0], sorted(out, key=lambda row: (row["ad"], row["width"]))


def test_kinds_of_rows_are_joined_in_one_pass_over_the_input():
    found, out = kinds("kind = 'shown'", "`kind` == 'click'", "width in (1, 2)")
    assert found is not None and found.column == "kind" and isinstance(found.parent, Input)
    assert found.where() == "`kind` = 'shown' and (width in (1, 2)) or `kind` = 'click'"
    assert [row["ad"] for row in out] == [ad for ad in range(0, 30, 2) if ad % 5 in (1, 2)]


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ("kind = 'shown'", "kind = 'click'", True),
        ("kind = 'shown'", "ad >= 0", False),
        ("kind = 'shown'", "kind = 'click' and ad >= 0", False),
        ("kind = 'shown'", "kind = 'click' or ad >= 0", False),
        ("kind = 'shown'", "other = 'click'", False),
        ("kind = 'Click'", "kind = 'click'", False),
        ("ad = '1'", "ad = '01'", False),
        ("on = 'true'", "on = 't'", False),
        ("kind = 'it''s'", "kind = 'click'", False),
    ],
)
def test_only_what_is_surely_of_two_kinds_is_told_apart_in_one_pass(first, second, apart):
    events = Input()
    members = [Select(Extend(events, where=condition), (("ad", "`ad`"),)) for condition in (first, second)]
    assert (one_pass(Union(tuple(members))) is not None) == apart


def test_kinds_that_are_told_apart_in_two_passes_are_joined_just_so():
    one, out = kinds("kind = 'shown'", "kind = 'click'")
    two, same = kinds("kind = 'shown'", "kind = 'click' and ad >= 0")
    assert one is not None and two is None and out == same and len(out) == 15


@pytest.mark.parametrize(
    ("condition", "straight"),
    [("width < limit", True), ("limit > width", True), ("width < 2", False), ("width + 0 < limit", False)],
)
def test_rows_between_operators_are_compared_by_the_tasks_that_read_them(condition, straight):
    def build(stream: Stream):
        joined = stream.source("shown").join(stream.source("clicks"), on="ad")
        return joined.where(condition).key_by("ad").process(ByAd()).write("memory")

    if "+" in condition:
        with pytest.raises(BadInput, match="needs Spark"):
            PipelineKit(build, rows=SIDES)
        return
    kit = PipelineKit(build, rows=SIDES, slots=3)
    out = kit.epoch(SHOWN + CLICKS)["output"]
    assert sorted(row["ad"] for row in out) == [ad for ad in range(0, 30, 2) if ad % 5 < 2]
    assert ("staged by ad" in kit.explain()) == straight


def test_a_comparison_fits_columns_that_arrow_and_spark_compare_alike():
    found = comparison(" left <= right ")
    assert found == Comparison("left", "<=", "right")
    assert all(
        comparison(other) is None for other in ("left <= 1", "a.b = c", "left", "a = b and c = d", "a = true", "a <=> b", None)
    )
    for kind, fits in ((pa.int64(), True), (pa.timestamp("us", "UTC"), True), (pa.float64(), False), (pa.string(), False)):
        assert found.fits(pa.schema({"left": kind, "right": kind})) == fits
    assert not found.fits(pa.schema({"left": pa.int64(), "right": pa.int32()}))
    assert not found.fits(pa.schema({"left": pa.int64()}))
    rows = pa.record_batch({"left": [1, 2, None, 3], "right": [1, None, 1, 2]})
    assert found.kept(rows).to_pylist() == [{"left": 1, "right": 1}]


@pytest.mark.parametrize(
    ("columns", "made"), [("user string, _hash long", {}), ("user string, amount long", {"_hash": "amount"})]
)
def test_rows_with_a_column_called_as_their_hash_are_refused(columns, made):
    def build(stream: Stream):
        for name, expression in made.items():
            stream = stream.with_column(name, expression)
        return stream.key_by("user").process(ByUser()).write("memory")

    with pytest.raises(BadInput, match="operator by_user: a column of its rows is called _hash"):
        PipelineKit(build, rows=columns)
