"""Steps that come before operators: columns chosen, streams put together, several readers of one output."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput
from floodplain.operators.process import KeyedProcess
from floodplain.spark.kit import PipelineKit
from floodplain.spark.plan import Union
from floodplain.spark.stream import Stream
from tests.spark.processes import Tally

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


class Widest(KeyedProcess):
    """Gives out what it is given: its output depends on its input."""

    def __init__(self, output: pa.Schema | None = None) -> None:
        if output is not None:
            self.output = output
            self.side_outputs = {"first": output}

    def fitted(self, rows, keys, event_time):
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
    with pytest.raises(BadInput, match="no column 'nobody'; they have user, amount"):
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
