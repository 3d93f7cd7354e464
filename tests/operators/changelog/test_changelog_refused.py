"""Steps that would misread a changelog as plain rows: each refuses, and says what to do."""

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.testing.pipeline_kit import PipelineKit
from tests.operators.changelog.test_retractions import COLUMNS, chained, newest, on

REFUSED = {
    "update": (lambda s: s.key_by("page").last(name="x"), "operator x: .*column weight.*mode='retract'"),
    "ttl": (
        lambda s: s.key_by("page").last(mode="retract", ttl="1 hour"),
        "operator last: .*expired cannot be retracted: omit ttl",
    ),
    "dedup last": (
        lambda s: s.dedup("page", keep="last", mode="retract", within="1 hour"),
        "operator dedup: .*cannot be retracted",
    ),
    "top": (lambda s: s.key_by("page").top(2, "seq", name="x"), "operator x: .*mode='retract'"),
    "append": (lambda s: s.key_by("page").top(2, "seq", mode="append", until="at"), "operator top: .*appended.*without until"),
    "dedup": (lambda s: s.dedup("page"), r"operator dedup: .*first\(mode='retract'\)"),
    "pivot": (lambda s: s.key_by("user").pivot("page", ["a"], "seq"), "operator pivot: .*aggregate with conditions"),
    "window": (
        lambda s: s.key_by("page").window(fp.tumbling("1 second")).agg(n=fp.count()),
        "operator windows: .*make the window a key",
    ),
    "count window": (lambda s: s.key_by("page").window(fp.count_window(3)).agg(name="x", n=fp.count()), "operator x: "),
    "in order": (lambda s: s.key_by("page").agg(n=fp.count(), in_order=True), "operator aggregate: .*omit in_order"),
    "join within": (lambda s: s.join(s, "user", within=("0 seconds", "1 second")), "operator join: .*omit within"),
    "join, right": (lambda s: s.as_rows().join(s, "user", window=fp.tumbling("1 second")), "operator join: .*omit window"),
    "join as of": (lambda s: s.join(s, "user", as_of=True), "operator join: .*omit as_of"),
    "join with ttl": (lambda s: s.join(s, "user", ttl="1 day"), "operator join: .*omit ttl"),
    "lookup": (lambda s: s.lookup("memory://x", "t", "user"), "operator lookup: .*look up one epoch"),
    "process": (lambda s: s.key_by("user").process(Counts(), in_order=True), "operator counts: .*omit in_order"),
    "sum of weights": (lambda s: s.key_by("page").agg(n=fp.sum("weight")), "aggregate n goes by weight.*is count"),
    "signed sum": (lambda s: s.key_by("page").agg(n=fp.sum("seq * Weight")), "aggregate n goes by weight"),
    "only some": (lambda s: s.key_by("page").agg(n=fp.count(where="weight > 0")), "aggregate n goes by weight"),
    "where": (lambda s: s.where("`weight` > 0"), "where goes by weight"),
    "with_column": (lambda s: s.with_column("signed", "seq * weight"), "column signed goes by weight"),
    "all columns": (lambda s: s.with_column("json", "to_json(struct(*))"), "column json goes by weight"),
    "another weight": (lambda s: s.with_column("weight", "1"), "column weight goes by weight"),
    "key": (lambda s: s.key_by("weight"), "column weight goes by weight"),
    "made key": (lambda s: s.key_by(sign="sign(weight)"), "column sign goes by weight"),
    "select": (lambda s: s.select("user"), r"without their column weight.*as_rows\(\)"),
    "renamed": (lambda s: s.select("user", w="weight"), "without their column weight"),
    "made anew": (lambda s: s.select("user", weight="1"), "without their column weight"),
    "by weight": (lambda s: s.key_by("page").top(1, "weight", mode="retract"), "no column weight to order by"),
    "name": (lambda s: s.key_by("page").agg(rows_now=fp.count()), "cannot be called rows_now"),
}


class Counts(fp.KeyedProcess):
    seen = fp.Value("long", default=0)
    output = "user string, page string, weight long"

    def process(self, key, rows, ctx):
        yield from ((key.user, row.page, row.weight) for row in rows)


@pytest.mark.parametrize("name", REFUSED)
def test_whoever_would_take_changes_for_rows_refuses(name):
    build, message = REFUSED[name]
    with pytest.raises(fp.BadInput, match=message):
        PipelineKit(lambda s: build(newest(s)).write("memory"), rows=COLUMNS)


def test_what_does_not_mean_the_weight_may_be_called_so():
    kit = PipelineKit(
        lambda s: newest(s).where("page != 'weight'").with_column("weights", "seq").select("weights", "weight").write("memory"),
        rows=COLUMNS,
    )
    assert kit.epoch([on("u", "a", 1, seq=3), on("v", "weight", 1)])["output"] == [{"weights": 3, "weight": 1}]


def test_a_process_gets_changes_as_they_are():
    """And what it gives out are rows, whatever their columns are called."""
    kit = PipelineKit(lambda s: newest(s).key_by("user").process(Counts()).where("weight < 0").write("memory"), rows=COLUMNS)
    assert kit.epoch([on("u", "a", 9)], watermark_ms=9)["output"] == []
    assert kit.epoch([on("u", "b", 10)])["output"] == [{"user": "u", "page": "a", "weight": -1}]


def test_a_transform_may_not_drop_the_weight():
    def build(stream):
        return newest(stream).transform(lambda df: df).key_by("page").agg(n=fp.count()).write("memory")

    assert PipelineKit(build, rows=COLUMNS, transforms=[lambda rows: rows])
    for spoil in (lambda rows: rows.drop_columns(["weight"]), lambda rows: rows.set_column(7, "weight", pa.nulls(len(rows)))):
        with pytest.raises(fp.BadInput, match=r"transform: .*weight.*as_rows\(\)"):
            PipelineKit(build, rows=COLUMNS, transforms=[spoil])


@pytest.mark.parametrize("weight", [2, 0, None])
@pytest.mark.parametrize("second", [lambda s: s.agg(n=fp.count()), lambda s: s.top(1, "at", mode="retract")])
def test_a_transform_may_not_spoil_the_weight(weight, second):
    spoiled = pa.array([weight], pa.int64())
    kit = PipelineKit(
        lambda s: second(newest(s).transform(lambda df: df).key_by("page")).write("memory"),
        rows=COLUMNS,
        transforms=[lambda rows: rows.set_column(7, "weight", spoiled.take(pa.array([0] * len(rows), pa.int64())))],
    )
    with pytest.raises(fp.UserError, match="weight of a change is 1 or -1"):
        kit.epoch([on("u", "a", 1)])


def test_columns_that_cannot_be_compared_are_refused():
    build = chained(lambda s: s.key_by("user").last(mode="retract"), lambda s: s.key_by("page").top(1, "at", mode="retract"))
    with pytest.raises(fp.BadInput, match=r"top: column tags is map.*drop it with select"):
        PipelineKit(build, rows="user string, page string, at long, tags map<string,int>")


def behind(**aggregates):
    def build(stream):
        rows = stream.key_by("user").last("at", mode="retract", name="one")
        return (rows.key_by("page").agg(name="two", **aggregates) if aggregates else rows).write("memory")

    return build


def test_what_begins_behind_changes_that_were_given_is_refused():
    """It would get retractions of rows that it never got."""
    kit = PipelineKit(behind(), rows=COLUMNS)
    kit.epoch([on("u", "a", 1)])
    with pytest.raises(fp.BadInput, match=r"operator two takes the changes that one gives.*drop=\["):
        kit.restart(behind(n=fp.count()))


def test_aggregates_of_changes_cannot_be_added_later():
    kit = PipelineKit(behind(n=fp.count()), rows=COLUMNS)
    kit.restart(behind(n=fp.count(), total=fp.sum("seq")))
    kit.epoch([on("u", "a", 1, seq=2)])
    with pytest.raises(fp.BadInput, match="only one of them begins anew"):
        kit.restart(behind(n=fp.count(), total=fp.sum("seq"), high=fp.max("seq")))
    with pytest.raises(fp.BadInput, match="only one of them begins anew"):
        kit.restart(behind(n=fp.count(), total=fp.sum("seq"), costs=fp.sum("cost")))
    kit.restart(behind(n=fp.count(), total=fp.sum("seq")))
    assert kit.epoch([on("v", "a", 1, seq=3)])["output"] == [{"page": "a", "n": 2, "total": 5}]
