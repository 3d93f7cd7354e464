"""Expressions have the values that Spark gives them."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from floodplain.errors import UserError
from floodplain.sources.evaluation import Rows, evaluate, matching
from floodplain.sources.scan import (
    And,
    Arithmetic,
    Case,
    Column,
    Compare,
    Const,
    Expression,
    In,
    IsNull,
    Negate,
    Not,
    Or,
    Where,
    encoded_type,
)

LONG, REAL, FLAG = (encoded_type(type_) for type_ in (pa.int64(), pa.float64(), pa.bool_()))
MOST = 2**63 - 1
ROWS = Rows(
    {
        "n": pa.array([1, None, MOST, -MOST - 1]),
        "d": pa.array([float("nan"), -0.0, None, 1.0]),
        "b": pa.array([True, False, None, True]),
    },
    4,
)
N, D, B = map(Column, "ndb")
NEXT = Arithmetic("add", N, Const(1, LONG), True)


def values(expression: Expression) -> list:
    return evaluate(msgspec.msgpack.decode(msgspec.msgpack.encode(expression), type=Expression), ROWS).to_pylist()


def test_nan_is_equal_to_itself_and_greater_than_any_number():
    nan, zero = Const(float("nan"), REAL), Const(0.0, REAL)
    assert values(Compare("eq", D, nan)) == [True, False, None, False]
    assert values(Compare("gt", D, zero)) == [True, False, None, True]
    assert values(Compare("ge", D, zero)) == [True, True, None, True]
    assert values(Compare("lt", D, nan)) == [False, True, None, True]
    assert values(Compare("le", nan, D)) == [True, False, None, False]
    assert values(In(D, (nan, zero))) == [True, True, None, False]


def test_logic_has_three_values():
    null = Const(None, FLAG)
    assert values(And(B, null)) == [None, False, None, None]
    assert values(Or(B, null)) == [True, None, None, True]
    assert values(Not(B)) == [False, True, None, False]
    assert values(Compare("same", B, null)) == [False, False, True, False]
    assert values(IsNull(B)) == [False, False, True, False]


def test_a_value_may_be_none_of_several_or_that_is_not_known():
    assert values(In(N, (Const(1, LONG), Const(2, LONG)))) == [True, None, False, False]
    assert values(In(N, (Const(1, LONG), Const(None, LONG)))) == [True, None, None, None]
    assert values(In(N, (Const(None, LONG),))) == [None] * 4


@pytest.mark.parametrize("expression", [NEXT, Negate(N, True), Arithmetic("multiply", N, N, True)])
def test_overflow_is_an_error_or_wraps_around(expression):
    with pytest.raises(UserError, match=r"ARITHMETIC_OVERFLOW.*int64"):
        values(expression)
    wrapped = values(msgspec.structs.replace(expression, checked=False))
    assert len(wrapped) == 4 and wrapped[1] is None


def test_what_a_row_does_not_need_does_not_fail_for_it():
    small = Compare("lt", N, Const(5, LONG))
    assert values(And(small, Compare("gt", NEXT, Const(1, LONG)))) == [True, None, False, False]
    assert values(Or(Not(small), Compare("gt", NEXT, Const(2, LONG)))) == [False, None, True, False]
    assert values(Case(((small, NEXT),), N, LONG)) == [2, None, MOST, -MOST]
    assert values(Case(((small, NEXT),), None, LONG)) == [2, None, None, -MOST]
    never = Arithmetic("add", Const(None, LONG), NEXT, True)
    assert values(never) == [None] * 4
    assert matching(And(small, Compare("gt", NEXT, Const(1, LONG))), ROWS).columns["n"].to_pylist() == [1]


def test_only_rows_for_which_a_condition_is_true_are_kept():
    kept = matching(B, ROWS)
    assert kept.count == 2 and kept.columns["n"].to_pylist() == [1, -MOST - 1]
    assert matching(Const(True, FLAG), Rows({}, 3)).count == 3
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Where(B)), type=Where) == Where(B)


def test_constants_of_each_type_survive_the_wire():
    constants = {
        pa.date32(): 18_262,
        pa.timestamp("us", "UTC"): -1,
        pa.timestamp("us"): 2**50,
        pa.decimal128(38, 3): "-12345678901234567890.125",
        pa.binary(): "\u00ff\u0000a",
        pa.string(): "ä",
        pa.int8(): -128,
        pa.float32(): 1.5,
    }
    for type_, value in constants.items():
        const = Const(value, encoded_type(type_))
        column = evaluate(msgspec.msgpack.decode(msgspec.msgpack.encode(const), type=Const), ROWS)
        assert column.type == type_ and len(column) == 4 and column.null_count == 0
        assert values(Compare("eq", const, const)) == [True] * 4
    assert np.asarray(evaluate(Const(-1, encoded_type(pa.timestamp("us"))), ROWS).view(pa.int64())).tolist() == [-1] * 4
