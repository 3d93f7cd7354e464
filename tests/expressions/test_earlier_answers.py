"""What each reader answered when regular expressions read SQL text: the same today, byte by byte where the log records it."""

import json
from pathlib import Path

import pytest

from floodplain.errors import BadInput
from floodplain.expressions.columns import expression_named, name_of, named
from floodplain.expressions.comparison import comparison
from floodplain.expressions.identifiers import plain_name
from floodplain.operators.changelog.changelog import WEIGHT
from floodplain.operators.kernel.definition import canonical
from floodplain.operators.ranking.sort_order import parse_order
from floodplain.plan.changelog_checks import check_unweighted
from floodplain.plan.nodes import Extend, Input
from floodplain.plan.single_scan import _choice
from floodplain.state.row_expressions import parse_paths
from tests.expressions.shown import Shown

EARLIER = json.loads((Path(__file__).parent / "earlier_answers.json").read_text())


def _named_column(text):
    ((name, made),) = named([Shown(text)], "select", {})
    return [name, made if isinstance(made, str) else "Column"]


def _comparison(text):
    read = comparison(text)
    return None if read is None else [read.left, read.sign, read.right]


READERS = {
    "plain_name": plain_name,
    "expression_named": expression_named,
    "named_column": _named_column,
    "name_of_column": lambda text: name_of(Shown(text), "select"),
    "comparison": _comparison,
    "choice": lambda text: _choice(Extend(Input("in"), (), text)),
    "weight": lambda text: check_unweighted("x", text),
    "canonical": canonical,
    "order": lambda text: [[by.column, by.descending, by.nulls_first] for by in parse_order(text)],
    "paths": parse_paths,
}


def _answer(reader, text):
    try:
        return json.loads(json.dumps(READERS[reader](text)))
    except BadInput:
        return "refused"


def test_the_answers_are_of_these_readers():
    assert list(READERS) == EARLIER["readers"]
    assert WEIGHT == "weight"


@pytest.mark.parametrize("place", range(len(EARLIER["readers"])), ids=EARLIER["readers"])
def test_a_reader_answers_as_before(place):
    reader = EARLIER["readers"][place]
    differing = {
        text: (answers[place], _answer(reader, text))
        for text, answers in EARLIER["answers"]
        if _answer(reader, text) != answers[place]
    }
    assert differing == {}
