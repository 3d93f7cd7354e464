"""Joins of changes against loops over the rows that are left."""

from itertools import product

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.changelog.changelog import fold_changes
from floodplain.testing.pipeline_kit import PipelineKit
from tests.operators.changelog.test_retractions import COLUMNS, events, on, run
from tests.operators.joins.joining import HOWS
from tests.operators.shaken import bag

LEFT = ("page", "user", "seq")
RIGHT = ("page", "price", "number")


def left(stream):
    return stream.key_by("user").last(mode="retract", name="newest").select(*LEFT, "weight")


def right(stream):
    newest = stream.key_by("seq").first("price desc", mode="retract", name="dearest")
    return newest.select("page", "price", "weight", number="seq")


def plain_left(stream):
    return stream.where("good").select(*LEFT)


def plain_right(stream):
    return stream.where("good").select("page", "price", number="seq")


SIDES = {"both": (left, right), "left": (left, plain_right), "right": (plain_left, right)}


def joined(rows, others, how):
    """A loop over all pairs."""
    pairs = [(row, other) for row, other in product(rows, others) if row["page"] is not None and row["page"] == other["page"]]
    met, others_met = [row for row, _ in pairs], [other for _, other in pairs]
    if how in ("semi", "anti"):
        return [row for row in rows if (row in met) == (how == "semi")]
    found = [{**row, **other} for row, other in pairs]
    if how in ("left", "full"):
        found += [{**dict.fromkeys(RIGHT), **row} for row in rows if row not in met]
    if how in ("right", "full"):
        found += [{**dict.fromkeys(LEFT), **other} for other in others if other not in others_met]
    return [{name: row[name] for name in (*LEFT, *RIGHT[1:])} for row in found]


@pytest.mark.parametrize("sides", SIDES)
def test_what_came_of_a_row_is_taken_back_with_it(sides):
    def build(stream):
        timed = stream.watermark("at", "1 second")
        one, other = (side(timed) for side in SIDES[sides])
        output = one.write("memory", name="one").also(other.write("memory", name="other"))
        for how in HOWS:
            output = output.also(one.join(other, "page", how, name=how).write("memory", name=how))
        return output

    for found in run(build, events(4, size=12), 2):
        given = (found["one"], found["other"])
        rows, others = ((fold_changes(rows) if "weight" in rows.column_names else rows).to_pylist() for rows in given)
        for how in HOWS:
            assert bag(fold_changes(found[how]).to_pylist()) == bag(joined(rows, others, how)), how
    assert -1 in found["inner"]["weight"].to_pylist()


def test_a_side_may_have_no_columns_but_its_key():
    def build(stream):
        newest = stream.key_by("user").last("at", mode="retract")
        return newest.select("page", "weight").join(stream.select("page", at_click="at"), "page", "full").write("memory")

    kit = PipelineKit(build, rows=COLUMNS)
    first = kit.epoch([on("u", "a", 1)])["output"]
    assert first == [{"page": "a", "at_click": 1, "weight": 1}]
    found = [pa.Table.from_pylist(rows, kit.schemas["output"]) for rows in (first, kit.epoch([on("u", "b", 2)])["output"])]
    expected = [{"page": "a", "at_click": 1}, {"page": "b", "at_click": 2}]
    assert bag(fold_changes(found).to_pylist()) == bag(expected)


def test_pairs_of_copies_are_counted():
    """Two alike on one side and three on the other are six pairs."""

    def build(stream):
        newest = stream.key_by("user").last("at", mode="retract").select("page", "weight")
        pairs = newest.join(stream.select("page", "good"), "page")
        return pairs.key_by("page").agg(n=fp.count()).write("memory")

    kit = PipelineKit(build, rows=COLUMNS)
    assert kit.epoch([on("u", "a", 1), on("v", "a", 1), on("v", "a", 1)])["output"] == [{"page": "a", "n": 6}]
    assert kit.epoch([on("u", "b", 2), on("u", "b", 2)])["output"] == [{"page": "a", "n": 3}, {"page": "b", "n": 2}]
