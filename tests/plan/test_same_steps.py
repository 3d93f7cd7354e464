"""A step of another plan that gives the same rows, where nothing there needs what comes before it."""

from dataclasses import replace

import pyarrow as pa
import pytest

from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Input, Plan, Select, Union
from floodplain.plan.same_steps import counterpart
from floodplain.testing.described import Columns, DescribingKit
from tests.processes import Tally

COLUMNS = Columns(pa.schema({"user": pa.string(), "amount": pa.int64(), "kind": pa.string()}))


def rich(rows):
    return rows.where("amount > 3").with_column("twice", "amount * 2")


def split(rows):
    one, two = (rows.where(f"kind = '{kind}'").select("user", amount="amount") for kind in ("a", "b"))
    return replace(rows, node=Union((one.node, two.node)))


def stream() -> Stream:
    return Stream(DescribingKit("user string", None), {"": COLUMNS}, Input(), {})


def planned(*steps) -> Plan:
    """A plan with the given steps before an operator, one after the other branch of the input."""
    rows = stream()
    outputs = [step(rows).key_by("user").process(Tally(), name=f"tally{number}") for number, step in enumerate(steps)]
    first, *others = [rows.write("memory", name=f"out{number}") for number, rows in enumerate(outputs)]
    for other in others:
        first = first.also(other)
    return first.plan


def last_step(plan: Plan):
    return plan.operators[0].parent


@pytest.mark.parametrize("step", [lambda rows: rows, rich, split, lambda rows: rows.select("user", w="amount + 1")])
def test_the_same_steps_written_again_are_found(step):
    plan, other = planned(step), planned(lambda rows: step(rows).where("user <> 'x'"))
    found = counterpart(plan, last_step(plan), other)
    assert found is not None and found in other.nodes
    assert type(found) is type(last_step(plan))
    assert [node for node in other.nodes if found in (getattr(node, "parent", None),)]


@pytest.mark.parametrize(
    "other",
    [
        lambda rows: rows.where("amount > 4").with_column("twice", "amount * 2"),
        lambda rows: rows.where("amount > 3").with_column("twice", "amount * 3"),
        lambda rows: rows.where("amount > 3").with_column("more", "amount * 2"),
        lambda rows: rows.where("amount > 3"),
        lambda rows: rows.with_column("twice", "amount * 2").where("amount > 3"),
        lambda rows: rows.transform(lambda frame: frame),
        lambda rows: rows,
        split,
    ],
)
def test_other_steps_are_not(other):
    plan = planned(rich)
    assert counterpart(plan, last_step(plan), planned(other)) is None


@pytest.mark.parametrize("more", [lambda rows: rows, lambda rows: rows.where("amount > 3"), rich])
def test_a_step_is_none_where_another_branch_reads_what_comes_before_it(more):
    """Each branch has written the steps anew, so that there is more than one reader of the input."""
    plan, other = planned(rich), planned(rich, more)
    assert counterpart(plan, last_step(plan), other) is None
    front = next(node for node in plan.nodes if isinstance(node, Input))
    assert isinstance(counterpart(plan, front, other), Input)


def test_columns_that_a_reader_of_late_rows_adds_make_another_step():
    timed = Stream(DescribingKit("user string", None), {"": COLUMNS}, Input(), {})

    def plan(late):
        last = timed.key_by("user").last("amount")
        out = last.write("memory")
        return (out.also(last.late().write("memory", name="late")) if late else out).plan

    selects = [next((node for node in each.nodes if isinstance(node, Select)), None) for each in (plan(False), plan(True))]
    for number, select in enumerate(selects):
        if select is not None:
            assert counterpart(plan(bool(number)), select, plan(not number)) is None
