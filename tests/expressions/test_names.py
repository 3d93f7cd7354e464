"""Every word names a column, as in Spark: those that sqlglot takes for its own keywords, commands and types, too."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.dialects.spark import Spark

from floodplain.expressions.aliases import Alias, alias_in
from floodplain.expressions.columns import expression_named, name_of, named
from floodplain.expressions.comparison import Comparison, comparison
from floodplain.expressions.identifiers import path_in, paths_in, plain_name, quoted, unquoted
from floodplain.expressions.mentions import mentions
from floodplain.expressions.shown_columns import call_of_columns, equal_columns
from floodplain.expressions.sort_items import SortItem, sort_items
from floodplain.expressions.syntax import And, Column, Compare, In, Literal, parse
from floodplain.expressions.type_ddl import parse_type
from floodplain.operators.kernel.definition import canonical
from tests.expressions.shown import Shown

_GRAMMAR = """
    add after all always analyze and anti any array as asc at authorization between bigint binary boolean both bucket by cache
    cascade case cast char check clear cluster coalesce collate collection column comment commit compact concatenate
    constraint cost create cross cube current current_date current_time current_timestamp current_user data database date
    datetime day decimal default define delete desc describe directory distinct distribute div double drop else end escape
    except exchange exists explain export extended external extract fetch fields filter first float following for format from
    full function functions generated global grant group grouping having hour identifier if ignore import in include index
    inner insert int intersect interval into is items join key keys last lateral lazy leading left like limit lines list load
    local location lock logical long macro map matched merge minute month name natural next no not nulls numeric of offset on
    only optimize option or order out outer over overlay overwrite partition percent pivot position preceding primary
    principals properties purge quarter query range real recover reduce refresh rename repair replace reset restrict revoke
    right rlike role rollback rollup row rows schema second select semi session set short show skewed smallint some sort start
    statistics stored string struct substring sync table tables tablesample temporary then time timestamp tinyint to touch
    trailing transaction transform trim truncate type unarchive union unique unknown unlock unpivot unset update use user
    using value values varchar version view void week when where window with within year zone
"""
SPARKS = _GRAMMAR.split()
"""Words of Spark's grammar, all of which Spark 4.3 takes as names of columns."""
SQLGLOTS = sorted({word.lower() for word in Spark.Tokenizer.KEYWORDS if word.replace("_", "").isalnum()})
WORDS = sorted({*SPARKS, *SQLGLOTS} - {"true", "false", "null"})
NAMES = [*WORDS, *(word.upper() for word in WORDS[::7]), "_1", "a1", "größe"]
ANY_NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@pytest.mark.parametrize("name", NAMES)
def test_a_word_is_a_column_to_every_reader(name):
    assert plain_name(name) == name_of(Shown(name), "x") == name
    assert path_in(name) == (name,)
    assert paths_in(f"s.{name}, {name} . x") == (("s", name), (name, "x"))
    assert expression_named(f"{name} as {name}") == (name, name)
    assert named([Shown(name)], "x", {}) == [(name, quoted(name))]
    assert parse(name) == Column((name,))
    assert parse(f"{name} = 'x'") == Compare(Column((name,)), "=", Literal("x", "string"))
    assert parse(f"{name} in (1, {name}) and {name}.{name} <=> {name}") == And(
        (In(Column((name,)), (Literal(1, "int"), Column((name,)))), Compare(Column((name, name)), "<=>", Column((name,))))
    )
    assert comparison(f"{name}<{name}") == Comparison(name, "<", name)
    assert call_of_columns(f"max_by({name}, {name}) AS {name}").columns == (name, name)
    assert equal_columns(f"and(=({name}, a), =(b, {name}))") == ((name, "a"), ("b", name))
    assert mentions(f"a + {name}", name.lower()) and not mentions(f"a.{name} + {name}(1) + '{name}'", name.lower())
    assert canonical(f" {name}+( {name} )") == f"{name} + ( {name} )"
    assert parse_type(f"{name} long, `a b` struct<{name}: int>").field(0).name == name


@pytest.mark.parametrize("name", [name for name in NAMES if name.isascii()])
def test_a_word_is_a_column_of_an_order(name):
    assert sort_items(f"{name}, {name} desc, {name} Nulls LAST") == (
        SortItem(name, False, True),
        SortItem(name, True, False),
        SortItem(name, False, False),
    )


@pytest.mark.parametrize("name", ["true", "FALSE", "Null"])
def test_constants_are_no_columns_unless_quoted(name):
    assert plain_name(name) is None
    assert isinstance(parse(name), Literal)
    assert plain_name(quoted(name)) == name
    assert parse(quoted(name)) == Column((name,))


@given(ANY_NAME)
def test_any_name_in_backticks_is_a_column_to_every_reader(name):
    text = quoted(name)
    assert unquoted(text) == plain_name(text) == name
    assert path_in(f"{text}.{text}") == (name, name)
    assert alias_in(f"a + 1 as {text}") == Alias("a + 1", name)
    assert parse(f"{text}>={text}") == Compare(Column((name,)), ">=", Column((name,)))
    assert sort_items(f"{text} desc,{text}") == (SortItem(name, True, False), SortItem(name, False, True))
    assert parse_type(f"{text} long") == pa.struct([(name, pa.int64())])
    assert canonical(f"({text})") == text
    assert mentions(f"f({text})", name.lower())
