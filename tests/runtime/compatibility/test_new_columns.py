"""A pipeline whose input has another column than before: rows that operators keep are read with it, null in those from before."""

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.errors import IncompatibleChange, SchemaMismatch
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.state.descriptors import List, Map, Value
from floodplain.state.types import as_fields
from floodplain.testing.pipeline_kit import Columns, PipelineKit

ROWS = "user string, at long, n int"
MORE = "user string, at long, extra struct<x: int, y: string>, n long"
OLD = {"user": "a", "at": 1, "n": 1}


def widened(kit: PipelineKit, build, rows: str | dict[str, str]) -> None:
    """The same state under a pipeline whose input has these columns; the one before has published all it had."""
    given = {"": rows} if isinstance(rows, str) else rows
    kit.restart()
    kit._sources = {tag: Columns(pa.schema(as_fields(columns).items())) for tag, columns in given.items()}
    kit.restart(build)


def row(at: int, n: int, x: int | None = None) -> dict[str, object]:
    return {"user": "a", "at": at, "extra": None if x is None else {"x": x, "y": "y"}, "n": n}


def test_last() -> None:
    def build(stream):
        return stream.key_by("user").last("at", mode="retract").write("memory")

    kit = PipelineKit(build, rows=ROWS)
    kit.epoch([OLD])
    widened(kit, build, MORE)
    assert kit.state("last") == [{"user": "a", "row": {"at": 1, "extra": None, "n": 1}}]
    out = kit.epoch([row(2, 1 << 40, 7)])["output"]
    assert out == [{**row(1, 1), "weight": -1}, {**row(2, 1 << 40, 7), "weight": 1}]
    widened(kit, build, "user string, at long, n long")
    assert kit.epoch([{"user": "a", "at": 1, "n": 0}])["output"] == []
    assert kit.state("last") == [{"user": "a", "row": {"at": 2, "n": 1 << 40}}]


def test_top() -> None:
    def build(stream):
        return stream.key_by("user").top(2, "at desc", mode="retract").write("memory")

    kit = PipelineKit(build, rows=ROWS)
    kit.epoch([OLD, {**OLD, "at": 2}])
    widened(kit, build, MORE)
    out = kit.epoch([row(3, 3, 7)])["output"]
    assert sorted((r["at"], r["rank"], r["weight"], r["extra"]) for r in out) == [
        (1, 2, -1, None),
        (2, 1, -1, None),
        (2, 2, 1, None),
        (3, 1, 1, {"x": 7, "y": "y"}),
    ]


def test_dedup() -> None:
    def build(stream):
        return stream.dedup("user").write("memory")

    kit = PipelineKit(build, rows=ROWS)
    assert len(kit.epoch([OLD])["output"]) == 1
    widened(kit, build, MORE)
    assert kit.epoch([row(3, 3, 7), {**row(3, 3, 7), "user": "b"}])["output"] == [{**row(3, 3, 7), "user": "b"}]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_join(how: str) -> None:
    sides = {"left": "user string, at long, n int", "right": "user string, at long, m string"}

    def build(stream):
        timed = stream.watermark("at", "0 seconds")
        left, right = (timed.source(side).select("user", "at", *wanted[side]) for side in ("left", "right"))
        return left.join(right, "user", how, within=("-1 hour", "1 hour"), suffixes=("", "_right")).write("memory")

    wanted = {"left": ["n"], "right": ["m"]}
    kit = PipelineKit(build, rows=sides)
    kit.epoch([{"source": "left", "user": "a", "at": 1, "n": 1}, {"source": "right", "user": "b", "at": 1, "m": "x"}])
    wanted = {"left": ["n", "extra"], "right": ["m", "more"]}
    more = {"left": "user string, at long, extra array<int>, n long", "right": "user string, at long, m string, more long"}
    widened(kit, build, more)
    came = [{"source": "right", "user": "a", "at": 2, "m": "y", "more": 3}, {"source": "left", "user": "b", "at": 2, "n": 4}]
    out = {r["user"]: r for r in kit.epoch(came)["output"]}
    assert (out["a"]["n"], out["a"]["extra"], out["a"]["more"]) == (1, None, 3)
    assert (out["b"]["m"], out["b"]["more"], out["b"]["n"]) == ("x", None, 4)


def test_rows_that_wait_for_their_turn() -> None:
    def build(stream):
        ordered = stream.watermark("at", "0 seconds").key_by("user")
        return ordered.last("n", in_order=True).write("memory")

    kit = PipelineKit(build, rows=ROWS)
    assert kit.epoch([{**OLD, "at": 5}, {**OLD, "at": 6}], watermark_ms=1)["output"] == []
    widened(kit, build, MORE)
    assert kit.epoch([row(7, 9, 7)], watermark_ms=6)["output"] == [row(6, 1)]
    assert kit.epoch([], watermark_ms=8)["output"] == [row(7, 9, 7)]


class Profiles(KeyedProcess):
    output = "user string, seen string"

    profile = Value("struct<name: string, address: struct<zip: int>>")
    trail = List("struct<at: long>")
    pages = Map("string", "struct<n: int>")

    def process(self, key, rows, ctx):
        self.profile.set({"name": key.user, "address": {"zip": 1}})
        self.trail.append({"at": 1})
        self.pages.put("p", {"n": 1})
        yield key.user, "set"


class Richer(Profiles):
    profile = Value("struct<address: struct<city: string, zip: long>, name: string, age: int>")
    trail = List("struct<at: long, page: string>")
    pages = Map("string", "struct<n: long, last: array<string>>")

    def process(self, key, rows, ctx):
        for found in (self.profile.get(), list(self.trail), self.pages.get("p")):
            yield key.user, repr(found)


class Renamed(Profiles):
    profile = Value("struct<name: string, address: struct<zip: string>>")


def test_handles_give_rows_with_the_new_fields() -> None:
    def build(process):
        return lambda stream: stream.key_by("user").process(process, name="profiles").write("memory")

    kit = PipelineKit(build(Profiles()), rows=ROWS)
    kit.epoch([OLD])
    with pytest.raises(SchemaMismatch, match=r"operator profiles: .* column profile\.address\.zip is int32 and cannot"):
        kit.restart(build(Renamed()))
    kit.restart(build(Richer()))
    seen = [r["seen"] for r in kit.epoch([OLD])["output"]]
    profile = {"address": {"city": None, "zip": 1}, "name": "a", "age": None}
    assert seen == [repr(profile), repr([{"at": 1, "page": None}]), repr({"n": 1, "last": None})]


def windowed(**aggregates):
    def build(stream):
        timed = stream.watermark("at", "0 seconds").key_by("user")
        return timed.window(fp.tumbling("10 seconds")).agg(**aggregates).write("memory")

    return build


def test_partial_results_do_not_gain_or_lose_parts() -> None:
    """An aggregate that is added to open windows would know nothing of the rows they had."""
    kit = PipelineKit(windowed(total=fp.sum("n")), rows=ROWS)
    kit.epoch([OLD], watermark_ms=1)
    with pytest.raises(IncompatibleChange, match="aggregate most: it is new"):
        kit.restart(windowed(total=fp.sum("n"), most=fp.max("n")))
    kit.restart(windowed(total=fp.sum("n")))
    assert kit.epoch([OLD], watermark_ms=20_000)["output"][0]["total"] == 2
