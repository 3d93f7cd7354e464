"""Many columns cost as much more as there are more of them.

Two ways to the square are watched. In Python: bytecodes are counted, at one width and at four times as many columns. In Arrow,
where nothing can be counted: names of all columns are a new list each time they are asked for, and a table with one column more,
or another one, is a new list of all columns, so that neither may stand in a loop.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.store.rows.definition import Column, value_table
from tests.store import forge
from tests.test_imports import PACKAGE

NARROW, WIDE = 40, 160

# --- Loops in Python


class Steps:
    """Counts the bytecodes that our own code runs."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Steps":
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if "/floodplain/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.count += event == "opcode"
        return self._step


def steps(work: Callable[[int], object], width: int) -> int:
    with Steps() as counted:
        work(width)
    return counted.count


def check_growth(work: Callable[[int], object]) -> None:
    work(NARROW)  # what is cached, compiled or registered once
    narrow, wide = steps(work, NARROW), steps(work, WIDE)
    assert wide > narrow > NARROW
    assert wide <= 4.5 * narrow, f"{narrow} steps with {NARROW} columns, {wide} with {WIDE}"


def names(width: int) -> list[str]:
    return [f"c{number}" for number in range(width)]


def stored(width: int, merge: str, ttl_ms: int) -> None:
    """A table of so many columns, written, read, changed and compacted."""
    columns = {name: Column(pa.int64(), 0, merge, ttl_ms) for name in names(width)}
    store = forge.with_table(value_table("t", {"k": pa.int64()}, columns))
    rows = pa.table({"k": [1, 2, 3], **{name: [1, 2, 3] for name in names(width)}})
    forge.write(store, "t", ("put", rows))
    forge.write(store, "t", ("merge" if merge else "put", rows.slice(1)))
    list(store.diff("t", 1, 2))
    renames = {f"c{number}": f"d{number}" for number in range(0, width, 2)}
    changed = {renames.get(name, name): column for name, column in columns.items()}
    with store.writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, {**changed, "more": Column(pa.int64())}), renames=renames)
    view = store.snapshot().table("t")
    assert len(view.to_arrow()) == len(view.multi_get(rows.select(["k"])).rows) == 3
    view.multi_get(rows.select(["k"]), columns=list(changed)).aligned()
    list(store.compact(full=True))
    assert store.verify().good
    assert store.snapshot().table("t").to_arrow().num_columns == width + 2


@pytest.mark.parametrize(("merge", "ttl_ms"), [("", 0), ("sum", 0), ("sum", 1000)])
def test_tables(merge: str, ttl_ms: int) -> None:
    check_growth(lambda width: stored(width, merge, ttl_ms))


def all_of(aggregate: Callable[[str], Any], width: int) -> dict[str, Any]:
    return {f"of_{name}": aggregate(name) for name in names(width)}


class Whole(fp.KeyedBatchProcess):
    output = "k long, n long"

    def process(self, batch: Any, ctx: Any) -> pa.Table:
        batch.rows_arrow()
        return pa.table({"k": batch.keys.column("k"), "n": batch.rows_per_key()})


def with_states(width: int) -> fp.KeyedProcess:
    """A state for each column, and one for all of them."""
    struct = f"struct<{', '.join(f'{name}: long' for name in names(width))}>"

    def process(self: Any, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            whole = dict(zip(names(width), row[2:], strict=True))
        for name in names(width):
            getattr(self, f"v_{name}").set(whole[name])
        self.whole.set(whole)
        self.past.append(whole)
        yield key.k, self.whole.get()

    body = {f"v_{name}": fp.Value("long") for name in names(width)}
    body |= {"whole": fp.Value(struct), "past": fp.List(struct), "process": process, "output": f"k long, whole {struct}"}
    return type("States", (fp.KeyedProcess,), body)()


PIPELINES: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda rows, width: rows.agg(**all_of(fp.sum, width)),
    "retract": lambda rows, width: rows.agg(mode="retract", **all_of(fp.avg, width)),
    "last of each": lambda rows, width: rows.agg(**all_of(fp.last, width)),
    "distinct": lambda rows, width: rows.agg(**all_of(fp.count_distinct, width)),
    "window": lambda rows, width: rows.window(fp.tumbling("1 second"), firing="retracting").agg(**all_of(fp.sum, width)),
    "session": lambda rows, width: rows.window(fp.session("1 second")).agg(**all_of(fp.max, width)),
    "last": lambda rows, width: rows.last(mode="retract"),
    "in order": lambda rows, width: rows.last(in_order=True),
    "top": lambda rows, width: rows.top(2, by="c0 desc", mode="retract"),
    "pivot": lambda rows, width: rows.pivot("c0", {number: f"p{number}" for number in range(width)}, "c1", by="c1"),
    "many keys": lambda rows, width: rows.key_by(*names(width)).agg(n=fp.count()),
    "states": lambda rows, width: rows.process(with_states(width), name="states"),
    "batch": lambda rows, width: rows.process(Whole()),
}


def declared(width: int) -> str:
    return "k long, t timestamp, " + ", ".join(f"{name} long" for name in names(width))


def events(width: int, at_s: int) -> pa.Table:
    times = pa.array([at_s * 1_000_000, at_s * 1_000_000 + 1, at_s * 1_000_000], pa.timestamp("us", "UTC"))
    return pa.table({"k": [1, 1, 2], "t": times, **{name: [at_s, 1, 2] for name in names(width)}})


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_pipelines(build: Callable[[Any, int], Any]) -> None:
    def work(width: int) -> None:
        keyed = lambda stream: build(stream.watermark("t", "1 second").key_by("k"), width).write("memory")  # noqa: E731
        kit = fp.PipelineKit(keyed, rows=declared(width), slots=1)
        for at_s in (1, 5):
            kit.epoch(events(width, at_s).to_pylist())

    check_growth(work)


JOINS = {"within": {"within": ("-5 seconds", "5 seconds")}, "as of": {"as_of": True}, "held": {"ttl": "1 hour"}}


@pytest.mark.parametrize("options", JOINS.values(), ids=JOINS)
def test_joins(options: dict[str, Any]) -> None:
    def work(width: int) -> None:
        def build(stream: Any) -> Any:
            timed = stream.watermark("t", "1 second")
            joined = timed.source("a").join(timed.source("b"), "k", "left", suffixes=("", "_b"), **options)
            return joined.write("memory")

        kit = fp.PipelineKit(build, rows={"a": declared(width), "b": declared(width)}, slots=1)
        for at_s in (1, 5):
            kit.epoch([{**row, "source": side} for side in "ab" for row in events(width, at_s).to_pylist()])

    check_growth(work)


# --- Lists of all columns in Arrow

ALL_NAMES = {"column_names"}
ALL_COLUMNS = {"append_column", "set_column", "remove_column"}


def repeated(node: ast.AST) -> list[ast.AST]:
    """The parts of a loop that run once for each of its items."""
    if isinstance(node, ast.For):
        return [*node.body]
    if isinstance(node, ast.While):
        return [node.test, *node.body]
    if not isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        return []
    made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    return [*made, *(test for part in node.generators for test in part.ifs), *(part.iter for part in node.generators[1:])]


def lists_in_loops(source: str) -> list[int]:
    """The lines that make a list of all columns for each item of a loop."""
    tree = ast.parse(source)
    inside = {id(each): each for node in ast.walk(tree) for part in repeated(node) for each in ast.walk(part)}
    found = {each.lineno for each in inside.values() if isinstance(each, ast.Attribute) and each.attr in ALL_NAMES | ALL_COLUMNS}
    tests = (each for each in inside.values() if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.In | ast.NotIn))
    names = (each.comparators[0] for each in tests)
    found |= {each.lineno for each in names if isinstance(each, ast.Attribute) and each.attr == "names"}
    return sorted(found)


def test_no_list_of_all_columns_is_made_in_a_loop() -> None:
    """But for contenders in benchmarks, which are as their users would write them."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "bench" not in path.parts]
    found = {str(path.relative_to(PACKAGE)): lists_in_loops(path.read_text()) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}, "make it once, before the loop"


@pytest.mark.parametrize(
    "source",
    [
        "[name for name in wanted if name in rows.column_names]",
        "for name in wanted:\n    rows = rows.append_column(name, new)",
        "for name in wanted:\n    if name not in rows.names: fail()",
        "{name: rows.set_column(0, name, new) for name in wanted}",
        "while some:\n    some = some & set(rows.column_names)",
    ],
)
def test_such_lists_are_found(source: str) -> None:
    assert len(lists_in_loops(source)) == 1


@pytest.mark.parametrize("source", ["[name for name in rows.column_names]", "for name in rows.names:\n    use(name)"])
def test_a_list_that_is_gone_through_is_none(source: str) -> None:
    assert lists_in_loops(source) == []
