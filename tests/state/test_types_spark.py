"""Spark itself is asked what it makes of the same texts."""

import pytest

from floodplain.errors import SchemaMismatch
from floodplain.expressions.type_ddl import parse_type
from floodplain.state.types import to_ddl
from tests.state.test_types import KNOWN

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark_arrow(spark):
    """Text → the Arrow type that Spark uses for it."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import _parse_datatype_string

    def without_comments(type_):
        for field in getattr(type_, "fields", ()):
            field.metadata = {}
        return type_

    return lambda text: to_arrow_type(without_comments(_parse_datatype_string(text)), timezone="UTC")


@pytest.mark.parametrize("text", [*(text for text, _ in KNOWN), "variant", "array<variant>"])
def test_spark_agrees(spark_arrow, text):
    assert spark_arrow(text).equals(parse_type(text), check_metadata=True)


@pytest.mark.parametrize("text", [text for text, _ in KNOWN])
def test_spark_reads_what_we_write(spark_arrow, text):
    type_ = parse_type(text)
    assert spark_arrow(to_ddl(type_)).equals(type_, check_metadata=True)


@pytest.mark.parametrize(
    "text", ["strng", "array<int", "decimal(39,2)", "a int, b", "a int;", "interval", "varchar(5)", "array<>"]
)
def test_what_spark_refuses_we_refuse(spark_arrow, text):
    with pytest.raises(Exception):  # noqa: B017 — any of Spark's
        spark_arrow(text)
    with pytest.raises(SchemaMismatch):
        parse_type(text)
