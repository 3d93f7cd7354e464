"""Values in the one form that users see, however they are given."""

import copy
from collections import namedtuple
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from floodplain.state.python_values import normalizer_for, user_rows, user_values
from floodplain.state.types import as_arrow

Pair = namedtuple("Pair", ["a", "b"])
DEEP = "array<struct<a: map<string, array<long>>, b: long>>"


@pytest.mark.parametrize(
    ("type_", "given", "wanted"),
    [
        ("array<long>", (1, 2), [1, 2]),
        ("array<long>", np.array([1, 2]), [1, 2]),
        ("array<array<long>>", [(1,), None, []], [[1], None, []]),
        ("map<string, long>", {"x": 1}, {"x": 1}),
        ("map<string, long>", [("x", 1), ("y", None)], {"x": 1, "y": None}),
        ("map<string, long>", [{"key": "x", "value": 1}], {"x": 1}),
        ("map<date, decimal(5,2)>", [(date(2020, 1, 1), Decimal("1.50"))], {date(2020, 1, 1): Decimal("1.50")}),
        ("map<string, array<long>>", [("x", (1,))], {"x": [1]}),
        ("map<struct<a: long, b: string>, long>", {Pair(1, "q"): 2}, [({"a": 1, "b": "q"}, 2)]),
        ("map<array<long>, long>", [((1, 2), 3)], [([1, 2], 3)]),
        ("struct<a: long, b: string>", (1, "q"), {"a": 1, "b": "q"}),
        ("struct<a: long, b: string>", Pair(1, "q"), {"a": 1, "b": "q"}),
        ("struct<a: long, b: string>", {"b": "q", "other": 5}, {"a": None, "b": "q"}),
        ("struct<a: long, b: string>", [("a", 1), ("b", "q")], {"a": 1, "b": "q"}),
        ("struct<a: array<long>, b: map<string, long>>", ((1,), [("x", 1)]), {"a": [1], "b": {"x": 1}}),
        (DEEP, [({"x": (1,)}, 2)], [{"a": {"x": [1]}, "b": 2}]),
    ],
)
def test_what_is_given_in_any_way_has_one_form(type_, given, wanted):
    arrow = as_arrow(type_)
    form = normalizer_for(arrow)
    assert form(given) == wanted
    assert form(form(given)) == wanted
    assert form(None) is None
    stored = pa.array([given, None], arrow)
    assert user_values(stored) == [wanted, None], "as it was given, so it comes back"
    assert user_rows(pa.table({"v": pa.chunked_array([stored])})) == [{"v": wanted}, {"v": None}]


def test_a_form_shares_nothing_with_what_was_given():
    form = normalizer_for(as_arrow(DEEP))
    given = [{"a": {"x": [1]}, "b": 2}]
    before, made = copy.deepcopy(given), form(given)
    made[0]["a"]["x"].append(2)
    made[0]["a"]["y"] = []
    made[0]["b"] = 3
    made.append(None)
    assert given == before


@pytest.mark.parametrize("type_", ["long", "string", "binary", "boolean", "double", "timestamp", "date", "decimal(5,2)", "void"])
def test_values_that_cannot_be_changed_have_no_form(type_):
    assert normalizer_for(as_arrow(type_)) is None


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        ("array<long>", 5),
        ("map<string, long>", 5),
        ("map<long, long>", [([1], 2)]),
        ("struct<a: long, b: string>", (1,)),
        ("struct<a: long, b: string>", 5),
    ],
)
def test_what_does_not_fit_is_left_for_arrow_to_refuse(type_, given):
    arrow = as_arrow(type_)
    assert normalizer_for(arrow)(given) == given
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        pa.array([given], arrow)
