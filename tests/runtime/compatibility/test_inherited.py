"""Pipelines that were changed, on what the one before left: output that was not published, rows that wait for their turn."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.operators.kernel.event_order import in_order
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.state.descriptors import List, Value
from floodplain.testing.faults import Crashed, CrashPoint
from floodplain.testing.pipeline_kit import PipelineKit
from tests.processes import Sightings

ROWS = "user string, at long"
A = [{"user": "a", "at": 5}]


class Told(KeyedProcess):
    """Gives out one row of these columns for each key."""

    def __init__(self, output: str, *values: object) -> None:
        self.output = output
        self.values = values

    def process(self, key, rows, ctx):
        yield self.values


class Noted(Told):
    """And keeps something."""

    note = Value("string", default="")


def told(*args, kind: type[Told] = Told):
    return lambda stream: stream.key_by("user").process(kind(*args), name="told").write("memory")


def left_unpublished(build, *given, **options) -> PipelineKit:
    """A kit whose driver has died between the commit of its first epoch and its publishing, and is not followed by another."""
    kit = PipelineKit(build, rows=ROWS, **options)
    kit.epoch(*given)
    publish = kit.steps.taken.index("publish output 1")
    kit.wipe()
    kit.restart()
    kit.crash_at(CrashPoint(publish, "before"))
    with pytest.raises(Crashed):
        kit.epoch(*given)
    assert kit.sinks["output"].epochs == {}
    return kit


@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        (told("user string, n long, m long", "a", 1, 2), "user string, n int64, m int64"),
        (told("user string", "a"), "user string"),
        (told("user string, n int", "a", 1), "user string, n int32"),
        (told("n long, user string", 1, "a"), "n int64, user string"),
        (told("user string, n struct<x: int>", "a", {"x": 1}), "user string, n struct<x: int32>"),
    ],
)
def test_other_columns_wait_until_the_pipeline_that_made_the_last_output_has_published_it(changed, columns):
    first = told("user string, n long", "a", 1)
    kit = left_unpublished(first, A)
    with pytest.raises(BadInput) as refused:
        kit.restart(changed)
    assert str(refused.value) == (
        "epoch 1 has output 'main' of 'told' that was not published before the last stop, and this pipeline gives other columns "
        f"({columns}) than it has (user string, n int64): start the pipeline that made it once more"
    )
    kit.restart(first)
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"user": "a", "n": 1}]
    kit.restart(changed)
    assert list(kit.epoch(A)["output"][0]) == [name.split()[0] for name in columns.split(", ")]


def test_steps_without_state_are_asked_too():
    def kept(*columns: str):
        return lambda stream: stream.select(*columns).write("memory")

    kit = left_unpublished(kept("user", "at"), A)
    with pytest.raises(BadInput, match=r"output 'main' of 'output' .* other columns"):
        kit.restart(kept("user"))


def test_a_pipeline_that_is_refused_has_changed_nothing():
    kit = left_unpublished(told("user string", "a", kind=Noted), A)
    before = kit.store.head.schemas
    with pytest.raises(BadInput, match="other columns"):
        kit.restart(told("user string, n long", "a", 1, kind=Noted))
    with pytest.raises(BadInput, match="this pipeline does not have it"):
        kit.restart(lambda stream: stream.key_by("user").process(Sightings()).write("memory"), drop=["told"])
    assert kit.store.history.refresh().schemas == before, "the value is still there"


class Renoted(Told):
    note = Value("long", default=0)


class Counted(Noted):
    count = Value("long", default=0)


def test_an_operator_that_does_not_fit_keeps_those_before_it_from_changing():
    def both(first: type[Told], second: type[Told]):
        def build(stream):
            one = stream.key_by("user").process(first("user string", "a"), name="first")
            return one.key_by("user").process(second("user string", "a"), name="second").write("memory")

        return build

    class Writing(Noted):
        def process(self, key, rows, ctx):
            self.note.set("x")
            yield self.values

    kit = PipelineKit(both(Writing, Writing), rows=ROWS)
    kit.epoch(A)
    before = kit.store.head.schemas
    with pytest.raises(SchemaMismatch, match="second"):
        kit.restart(both(Counted, Renoted))
    assert kit.store.history.refresh().schemas == before


EVERY_TYPE = {
    "boolean": True,
    "tinyint": 1,
    "float": 1.5,
    "decimal(10,2)": Decimal("1.50"),
    "binary": b"x",
    "date": date(2026, 1, 1),
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "timestamp_ntz": datetime(2026, 1, 1),  # noqa: DTZ001
    "void": None,
    "array<array<int>>": [[1]],
    "map<string, struct<x: int NOT NULL, y: array<long>>>": {"k": {"x": 1, "y": [2]}},
}


def test_the_same_pipeline_publishes_columns_of_any_type():
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(EVERY_TYPE))
    build = told(columns, *EVERY_TYPE.values())
    kit = left_unpublished(build, A)
    kit.restart(build)
    assert len(kit.sinks["output"].epochs[1]) == 1


def test_whether_values_in_a_column_can_be_null_is_known_from_its_rows_only():
    """As in Spark, where it depends on the columns that an array is made of."""

    def arrays(table: pa.Table) -> pa.Table:
        element = pa.field("element", pa.int64(), nullable=not len(table))
        return pa.table({"ats": pa.array([[at] for at in table["at"].to_pylist()], pa.list_(element))})

    kit = left_unpublished(lambda stream: stream.transform(lambda df: df).write("memory"), A, transforms=[arrays])
    kit.restart()
    assert kit.sinks["output"].epochs[1].to_pylist() == [{"ats": [5]}]


class Times(KeyedProcess):
    output = "user string, at long"

    def process(self, key, rows, ctx):
        for row in rows:
            yield key.user, row.at


class Waits(Times):
    """Has a state that is called as the table of rows that wait."""

    waiting = List("long")

    def process(self, key, rows, ctx):
        self.waiting.append(1)
        yield from super().process(key, rows, ctx)


def timed(process: KeyedProcess, name: str = "times", **options):
    return lambda stream: (
        stream.watermark("at", "0 seconds").key_by("user").process(process, name=name, **options).write("memory")
    )


def test_rows_that_wait_are_not_left_behind_where_the_order_is_no_longer_asked_for():
    kit = PipelineKit(timed(Times(), in_order=True), rows=ROWS)
    assert kit.epoch(A, watermark_ms=1)["output"] == []
    with pytest.raises(BadInput, match=r"operator times: rows wait in the state \(times__waiting\) .* start\(drop=\['times'\]\)"):
        kit.restart(timed(Times()))
    kit.restart(timed(Times(), in_order=True))
    assert kit.tick(now_ms=1, watermark_ms=5)
    assert kit.sinks["output"].epochs[2].to_pylist() == A
    kit.restart(timed(Times()))
    assert kit.epoch([{"user": "a", "at": 6}])["output"] == [{"user": "a", "at": 6}], "it does not wait"


def test_marks_of_what_went_early_keep_nobody_waiting():
    kit = PipelineKit(timed(Times(), in_order=in_order(rows=1)), rows=ROWS)
    kit.epoch([{"user": "a", "at": at} for at in (5, 6)], watermark_ms=1)
    with pytest.raises(BadInput, match="rows wait in the state"):
        kit.restart(timed(Times()))
    kit.restart(timed(Times(), in_order=in_order(time="0 ms")))
    kit.epoch([{"user": "a", "at": 7}])
    assert len(kit.state("times__waiting")) == 1, "a mark, because 7 went early"
    kit.restart(timed(Times()))


def test_a_state_called_waiting_is_not_taken_for_rows_that_wait():
    kit = PipelineKit(timed(Waits()), rows=ROWS)
    kit.epoch(A)
    kit.restart()
    assert len(kit.state("times__waiting")) == 1
