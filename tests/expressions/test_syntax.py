"""Conditions as far as they are read without Spark; all else is Spark's."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.expressions.identifiers import literal
from floodplain.expressions.shown_columns import call_of_columns, equal_columns, is_distinct_call
from floodplain.expressions.syntax import And, Column, Compare, In, Literal, Other, parse
from floodplain.expressions.tokens import pieces, tokens
from floodplain.operators.kernel.definition import canonical

A, ONE = Column(("a",)), Literal(1, "int")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a", A),
        (" s.`c d`.x ", Column(("s", "c d", "x"))),
        ("s.1.2", Column(("s", "1", "2"))),
        ("TRUE", Literal(True, "boolean")),
        ("null", Literal(None, "void")),
        ("-5", Literal(-5, "int")),
        ("+5", Literal(5, "int")),
        ("1L", Literal(1, "bigint")),
        ("-1s", Literal(-1, "smallint")),
        ("127Y", Literal(127, "tinyint")),
        ("2147483648", Literal(2147483648, "bigint")),
        ("-2147483648", Literal(-2147483648, "int")),
        (r"'it\'s\n\u00e9\\'", Literal("it's\né\\", "string")),
        ("a=1", Compare(A, "=", ONE)),
        ("a == 1", Compare(A, "==", ONE)),
        ("a<=>-1", Compare(A, "<=>", Literal(-1, "int"))),
        ("a IN (1,'x , y')", In(A, (ONE, Literal("x , y", "string")))),
        ("a = 1 AND\na", And((Compare(A, "=", ONE), A))),
    ],
)
def test_what_is_read(text, read):
    assert parse(text) == read


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a +",
            "(a)",
            "a = 1 or b",
            "a and",
            "not a",
            "a = b = c",
            "1.5",
            "1e3",
            "- 1",
            "128Y",
            "9223372036854775808",
            "a in ()",
        ),
        *(
            "a in (1",
            "a in 1",
            '"a"',
            "'a' 'b'",
            "count(a)",
            "a is null",
            "date '2024-01-01'",
            "a between 1 and 2",
            "s.",
            ".s",
            "'a",
        ),
        *("a -- b", "/* a */ b", "r'x'", "x'1f'", "a[0]", "``"),
    ],
)
def test_all_else_is_for_spark(text):
    assert parse(text) == Other(text.strip())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_literal_is_read_back(text):
    assert parse(literal(text)) == Literal(text, "string")


@given(st.text("ab`'\"\\ ().,*=<>-+1_eLn\n:é{#r", max_size=16))
def test_no_text_breaks_the_tokens(text):
    for read in (tokens(text), pieces(text)):
        assert all(token.text == text[token.start : token.end] and token.start < token.end for token in read)
        assert all(one.end <= other.start for one, other in pairwise(read))


@given(st.lists(st.sampled_from(["a", "`c d`", "'x y'", "1.5", "1L", "<=", "(", ")", ",", "+", "and"]), max_size=10))
def test_white_space_makes_no_difference_to_a_recorded_expression(parts):
    wide = "  ".join(parts)
    assert canonical(f" {wide}\n") == canonical(wide) == canonical(canonical(wide))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("count(*)", ("count", ("*",), None)),
        ("count(1) AS n", ("count", ("1",), "n")),
        ("sum(my col) AS it's a total", ("sum", ("my col",), "it's a total")),
        ("sum(`my col`)", ("sum", ("my col",), None)),
        ("sum(a`b)", ("sum", ("a`b",), None)),
        ("max_by(a, b)", ("max_by", ("a", "b"), None)),
    ],
)
def test_a_call_of_columns(text, call):
    read = call_of_columns(text)
    assert read is not None
    assert (read.function, read.columns, read.alias) == call


@pytest.mark.parametrize(
    "text",
    ["v", "sum(a.b)", "sum(+(a, b))", "sum(a * b)", "sum(v", "sum()", "+(a, b)", "sum(v) + 1", "count(v) over ()"],
)
def test_what_is_no_call_of_columns(text):
    assert call_of_columns(text) is None


def test_distinct_calls():
    assert is_distinct_call("COUNT( Distinct v)")
    assert not is_distinct_call("count(distinct)")
    assert not is_distinct_call("count(v)")


def test_columns_that_are_equal():
    assert equal_columns("=(a b, c)") == (("a b", "c"),)
    assert equal_columns("and(and(=(a, b), =(c, d)), =(e, f))") == (("a", "b"), ("c", "d"), ("e", "f"))


@pytest.mark.parametrize("text", ["a", "<=>(a, b)", "or(=(a, b), =(c, d))", "=(a, b, c)", "and(=(a, b), c)", "=(a, b) AS x"])
def test_what_is_no_pair_of_columns(text):
    assert equal_columns(text) is None


def test_sqlglot_is_imported_only_for_texts_that_need_it():
    program = (
        "import sys, floodplain\n"
        "from floodplain.expressions.type_ddl import parse_type\n"
        "from floodplain.state.row_expressions import parse_paths\n"
        "parse_type('user string, views array<struct<a: int>>'), parse_paths('page, click.page')\n"
        "print('sqlglot' in sys.modules)\n"
        "parse_type('`user name` string')\n"
        "print('sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
