"""Several ``max_by`` are those of one row. Each may go, or change its name, as long as another holds what they have in common."""

import pytest

import floodplain as fp
from floodplain.errors import IncompatibleChange
from floodplain.runtime.compatibility.definition_rules import KEPT
from floodplain.testing.pipeline_kit import PipelineKit

FIRST = {"k": 1, "t": 5, "a": 1, "b": 2, "c": 3}
OLDER = {"k": 1, "t": 4, "a": 7, "b": 8, "c": 9}


def newest(**columns: str):
    return lambda stream: stream.key_by("k").agg(**{name: fp.max_by(of, "t") for name, of in columns.items()}).write("memory")


def stopped() -> PipelineKit:
    kit = PipelineKit(newest(a="a", b="b", c="c"), rows="k long, t long, a long, b long, c long")
    kit.epoch([FIRST])
    kit.stop()
    return kit


@pytest.mark.parametrize(
    ("columns", "changes"),
    [
        ({"a": "a", "c": "c"}, {"drop": ["aggregate.b"]}),
        ({"a": "a"}, {"drop": ["aggregate.b", "aggregate.c"]}),
        ({"a": "a", "z": "b", "c": "c"}, {"rename": {"aggregate.b": "z"}}),
    ],
)
def test_one_of_several_goes_or_changes_its_name(columns, changes):
    kit = stopped()
    kit.restart(newest(**columns), **changes)
    assert kit.epoch([OLDER])["output"] == [{"k": 1, **{name: FIRST[of] for name, of in columns.items()}}]


@pytest.mark.parametrize("columns", [{"b": "b", "c": "c"}, {"c": "c", "b": "b", "a": "a"}])
def test_what_they_have_in_common_stays_where_it_is(columns):
    kit = stopped()
    with pytest.raises(IncompatibleChange, match="b: it is kept as b_0 and a_1, together with aggregates that stood before it"):
        kit.restart(newest(**columns), drop=["aggregate.a"] if "a" not in columns else [])


def test_the_log_names_for_each_only_what_it_is_made_of():
    aggregates = stopped().store.head.definitions["aggregate"].aggregates
    assert {name: each.value[KEPT] for name, each in aggregates.items()} == {
        "a": ["a_0", "a_1"],
        "b": ["b_0", "a_1"],
        "c": ["c_0", "a_1"],
    }
