"""What users' base classes show, and what the engine asks of operators besides."""

import ast
from pathlib import Path

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.operators.aggregates.running import RunningAggregate
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.operators.kernel.traits import OperatorTraits, traits_of

DECLARED = {"broadcast_order_by", "order_by", "output_time", "side_outputs"}
"""What a user may set; ``output`` has no default."""
CALLED = {"close", "on_broadcast", "open", "process", "states"}
EXPLAIN = Path(fp.__file__).parent / "pipeline" / "explain"


class Tally(KeyedProcess):
    output = "n long"
    combiner = fp.Value("long", 0)
    """A state may be called as a trait of the engine."""

    def process(self, key, rows, ctx):
        self.combiner.set(self.combiner.get() + len(rows))
        yield (self.combiner.get(),)


@pytest.mark.parametrize(("kind", "timers"), [(KeyedProcess, "on_timer"), (KeyedBatchProcess, "on_timers")])
def test_a_users_base_class_shows_what_users_need(kind, timers):
    assert {name for name in dir(kind) if not name.startswith("_")} == DECLARED | CALLED | {timers}


def test_the_engine_takes_a_users_process_as_it_is():
    process = Tally()
    traits = traits_of(process)
    assert traits.bind(pa.schema([]), (), None) is process
    assert traits.for_epoch() is process
    assert traits.resumed((), ()) is process
    assert traits.for_changes("tally") is process
    assert (traits.combiner, traits.depends_on_input, traits.gives_changes) == (None, False, False)
    assert traits.described(str).parameters[0].value == "Tally"


def test_an_operator_of_ours_has_traits_of_its_own():
    process = RunningAggregate({"n": fp.count()}, "retract")
    assert traits_of(process) is process
    assert isinstance(process, OperatorTraits)
    assert (process.depends_on_input, process.gives_changes, process.combines_when_bound) == (True, True, True)


def test_a_state_may_have_the_name_of_a_trait():
    kit = fp.ProcessKit(Tally(), keys=["k"], rows="k string")
    assert kit.epoch([{"k": "a"}, {"k": "a"}]) == [{"n": 2}]
    assert kit.epoch([{"k": "a"}]) == [{"n": 3}]


@pytest.mark.parametrize("path", sorted(EXPLAIN.glob("*.py")), ids=lambda path: path.stem)
def test_explain_knows_no_operator(path):
    modules = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    own = [name for name in modules if name.startswith("floodplain.operators.")]
    assert [name for name in own if not name.startswith("floodplain.operators.kernel.")] == []
