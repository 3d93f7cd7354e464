"""What tasks compute of rows that they read by themselves is what Spark computes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.errors import UserError
from floodplain.spark.native_input import NativeInput, native_input
from floodplain.spark.session_conf import settings
from tests.short_form import some
from tests.sources import generated
from tests.spark.native_reading import assert_same, by_spark, natively

COLUMNS = {
    "boolean": ("flag", "flag2"),
    "tinyint": ("tiny", "tiny2"),
    "int": ("whole", "whole2"),
    "bigint": ("big", "big2"),
    "float": ("single", "single2"),
    "double": ("real", "real2"),
    "string": ("text", "text2", "pair.Q"),
    "binary": ("raw", "raw2"),
    "decimal(15,4)": ("price", "price2"),
    "date": ("day", "day2"),
    "timestamp": ("at", "at2"),
    "timestamp_ntz": ("wall", "wall2"),
}
LITERALS = {
    "boolean": ("true", "false", "cast(null as boolean)"),
    "tinyint": ("3Y", "-1Y"),
    "int": ("7", "-50"),
    "bigint": ("7L", "-1000L", "cast(null as bigint)"),
    "float": ("cast(1.5 as float)", "cast('NaN' as float)"),
    "double": ("1.5D", "cast('NaN' as double)", "-0.0D", "0.0D"),
    "string": ("'a'", "'word'", "''", "'ä'"),
    "binary": ("X'61'", "X'00ff'"),
    "decimal(15,4)": ("cast(1.5 as decimal(15,4))",),
    "date": ("date'1999-12-31'",),
    "timestamp": ("timestamp'2001-01-01 00:00:00.5'",),
    "timestamp_ntz": ("timestamp_ntz'2001-01-01 00:00:00'",),
}
NUMBERS = ("tinyint", "int", "bigint", "float", "double")
SOURCES = tuple(name for names in COLUMNS.values() for name in names if name.isalnum() and not name.endswith("2"))


def expression(rng: np.random.Generator, type_: str, depth: int) -> str:
    def pick(*choices):
        return choices[int(rng.integers(len(choices)))]

    if depth == 0:
        return pick(*COLUMNS[type_], *COLUMNS[type_], pick(*LITERALS[type_]))
    below = depth - 1
    if type_ == "boolean" and rng.random() < 0.8:
        of = pick(*COLUMNS)
        one, other = expression(rng, of, below), expression(rng, of, below)
        first, second = expression(rng, "boolean", below), expression(rng, "boolean", below)
        among = ", ".join(pick(*LITERALS[of]) for _ in range(3))
        return pick(
            *(f"({one} {op} {other})" for op in ("=", "<", "<=", ">", ">=", "<=>", "!=")),
            *(f"({first} {op} {second})" for op in ("and", "or")),
            *(f"(not {first})", f"({one} is null)", f"({one} is not null)", f"({one} in ({among}))"),
        )
    if type_ in NUMBERS and rng.random() < 0.6:
        one, other = expression(rng, type_, below), expression(rng, type_, below)
        return pick(*(f"({one} {op} {other})" for op in "+-*"), f"(- {one})")
    condition, one, other = (expression(rng, each, below) for each in ("boolean", type_, type_))
    return pick(
        f"(case when {condition} then {one} else {other} end)",
        f"(case when {condition} then {one} end)",
        f"coalesce({one}, {other})",
        f"if({condition}, {one}, {other})",
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A file with two columns of each type, of small values, and of all values."""
    folders = {}
    for small in (True, False):
        rng = np.random.default_rng(11)
        rows = generated.table(rng, 150, (*SOURCES, "pair"))
        more = generated.table(rng, 150, SOURCES)
        for name in SOURCES:
            rows = rows.append_column(f"{name}2", more[name])
        if small:
            limited = [
                pa.array([None if v is None else v % 3 for v in column.to_pylist()], column.type)
                if pa.types.is_integer(column.type)
                else column
                for column in rows.columns
            ]
            rows = pa.table(limited, names=rows.column_names)
        folders[small] = tmp_path_factory.mktemp("pairs")
        pq.write_table(rows, folders[small] / "rows.parquet")
    types = {name: type_ for type_, names in COLUMNS.items() for name in names if name.isalnum()}
    return folders, ", ".join(["pair struct<p:long,Q:string>", "id long", *(f"{name} {type_}" for name, type_ in types.items())])


@pytest.mark.parametrize("seed", some(range(6), 1, 2, 5))
@pytest.mark.parametrize("ansi", [True, False])
def test_generated_expressions(spark, pairs, seed, ansi):
    folders, ddl = pairs
    rng = np.random.default_rng(seed)
    made = [f"{expression(rng, type_, int(rng.integers(1, 4)))} as c{n}" for n, type_ in enumerate([*COLUMNS] * 3)]
    kept = f"id > 100 or {expression(rng, 'boolean', 2)}"
    with settings(spark, {"spark.sql.ansi.enabled": str(ansi).lower()}):
        for columns in [made] if isinstance(stream(spark, folders[ansi], ddl, made), NativeInput) else [[one] for one in made]:
            if isinstance(stream(spark, folders[ansi], ddl, columns), NativeInput):
                assert_same(spark, folders[ansi], ddl, lambda rows, made=columns: rows.where(kept).selectExpr("id", *made))


def stream(spark, folder: Path, ddl: str, columns: list[str]) -> NativeInput | str:
    """Only what Spark may compute in another order is left to it."""
    found = native_input(spark.readStream.schema(ddl).parquet(str(folder)).selectExpr(*columns))
    assert isinstance(found, NativeInput) or "several times" in found, found
    return found


EXPRESSIONS = [
    *("xxhash64(big, text)", "xxhash64(real, single, flag, day, at, wall, price, raw, tiny)", "xxhash64(pair)"),
    *("named_struct('a', big, 'b', text, 'c', pair)", "struct(pair.Q, flag)", "struct(pair.p, pair.*).Q", "pair.p"),
    *(
        "real in (1.5D, 0.0D, cast('NaN' as double))",
        "real != 1.5D and isnan(real)",
        "big in (1, 2, null)",
        "text in ('a', 'b', null)",
    ),
    *("whole in (1,2,3,4,5,6,7,8,9,10,11,12,13,14,0)", "text not in ('', 'a', 'A', 'b', 'ä', 'c', 'd', 'e', 'f', 'g', 'h', 'i')"),
    *("price + price2", "price - price2", "price * cast(2.5 as decimal(5,1))", "-price", "price > cast(3 as decimal(9,2))"),
    *("cast(whole as long) + big2", "cast(tiny as double)", "cast(big as double)", "cast(single as double)", "whole > big"),
    *(
        "cast(whole as decimal(14,2))",
        "price = whole",
        "nvl(text, 'none')",
        "nullif(text, 'a')",
        "real <=> real2",
        "text between 'a' and 'c'",
    ),
    *(
        "big is null or big > 1",
        "cast(null as string)",
        "coalesce(pair, named_struct('p', big, 'Q', text))",
        "not (flag <=> flag2)",
    ),
]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_chosen_expressions(spark, pairs, ansi):
    folders, ddl = pairs
    made = [f"{sql} as c{number}" for number, sql in enumerate(EXPRESSIONS)]
    with settings(spark, {"spark.sql.ansi.enabled": ansi}):
        assert_same(spark, folders[True], ddl, lambda rows: rows.selectExpr("*", *made))
        assert_same(spark, folders[False], ddl, lambda rows: rows.where("text > 'A'").selectExpr("struct(text, big) as both"))


@pytest.mark.parametrize("sql", ["big + 1", "big * big", "-(big - 1)", "tiny + tiny", "whole - 5", "-tiny"])
def test_errors_are_where_spark_has_them(spark, tmp_path, sql):
    least = {"big": -(2**63), "tiny": -128, "whole": -(2**31)}
    rows = [{"id": 0, **dict.fromkeys(least, 1)}, {"id": 1, **least}, {"id": 2, **{name: -n - 1 for name, n in least.items()}}]
    types = {"id": pa.int64(), "big": pa.int64(), "tiny": pa.int8(), "whole": pa.int32()}
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(types)), tmp_path / "rows.parquet")
    ddl = "id long, big long, tiny byte, whole int"
    for steps in (lambda rows: rows.selectExpr(f"{sql} as c"), lambda rows: rows.where(f"{sql} > 0").select("id")):
        with pytest.raises(Exception, match="OVERFLOW"):
            by_spark(spark, tmp_path, ddl, steps)
        with pytest.raises(UserError, match="OVERFLOW"):
            natively(spark, tmp_path, ddl, steps)
    guarded = (f"id > 0 or {sql} > -1000", f"case when id = 0 then {sql} end is null", f"id = 0 and {sql} > -1000")
    for test in guarded:
        assert_same(spark, tmp_path, ddl, lambda rows, test=test: rows.selectExpr(f"{test} as c"))
    assert_same(spark, tmp_path, ddl, lambda rows: rows.where(guarded[2]).selectExpr(f"{sql} as c"))
    twice = [f"{test} as c{number}" for number, test in enumerate(guarded)]
    with pytest.raises(Exception, match="OVERFLOW"):
        by_spark(spark, tmp_path, ddl, lambda rows: rows.selectExpr(*twice))
    rows = spark.readStream.schema(ddl).parquet(str(tmp_path))
    assert "several times" in str(native_input(rows.selectExpr(*twice)))
    assert isinstance(native_input(rows.selectExpr(guarded[0], sql)), NativeInput)
    with settings(spark, {"spark.sql.ansi.enabled": "false"}):
        assert_same(spark, tmp_path, ddl, lambda rows: rows.selectExpr(f"{sql} as c"))
