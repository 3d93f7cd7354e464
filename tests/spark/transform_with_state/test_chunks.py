"""How many rows come at once: the limits of Spark by rows and by bytes, as Spark itself cuts."""

import random

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.spark.session_conf import settings
from floodplain.spark.transform_with_state.chunks import MOST_BYTES, MOST_ROWS, Chunks, _bytes
from tests.spark.transform_with_state.programs import PandasSizes, Sizes

ROWS = "k string, n long, s string, f double, b boolean, a array<int>, m map<string, int>, t struct<x: int, y: string>"
OUTPUT = "k string, sizes string"
NO_LIMIT = {MOST_ROWS: "-1", MOST_BYTES: str(2**31 - 1)}


def some_rows(count):
    rng = random.Random(5)

    def maybe(value):
        return None if rng.random() < 0.2 else value

    def one():
        text = "x" * rng.randrange(40)
        number = rng.randrange(100)
        entries = {str(at): at for at in range(rng.randrange(4))}
        return "u", maybe(number), maybe(text), maybe(0.5), maybe(True), maybe([1] * rng.randrange(5)), entries, (1, text)

    return [one() for _ in range(count)]


def sizes(spark, limits, *, initial, pandas, stock):
    # Of the last key with an initial state, if it is also the first with rows, Spark cuts the one and the other together.
    first = [("a", 1, "", 1.0, True, [], {}, (1, ""))] if initial else []
    rows = spark.createDataFrame([*first, *some_rows(60)], ROWS).groupBy("k")
    states = spark.createDataFrame([("u", n, "y" * n) for n in range(7)], "k string, n long, s string").groupBy("k")
    arguments = (PandasSizes() if pandas else Sizes(), OUTPUT, "append", "none", states if initial else None)
    theirs, ours = (
        (rows.transformWithStateInPandas, fp.transform_with_state_in_pandas)
        if pandas
        else (rows.transformWithState, fp.transform_with_state)
    )
    with settings(spark, {**limits, "spark.sql.shuffle.partitions": "1"}):
        made = theirs(*arguments) if stock else ours(rows, *arguments)
        return [row.sizes for row in made.collect() if row.k == "u"]


@pytest.mark.parametrize("limits", [{MOST_ROWS: "0"}, {MOST_ROWS: "-1"}, {MOST_ROWS: "-7"}], ids=str)
@pytest.mark.parametrize("pandas", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_no_limit(spark, limits, pandas, initial):
    states = "" if not initial else "7" if pandas else "1,1,1,1,1,1,1"
    assert sizes(spark, limits, initial=initial, pandas=pandas, stock=False) == [f"{states};60"]


@pytest.mark.parametrize(
    "limits",
    [
        {MOST_ROWS: "-1"},
        {MOST_ROWS: "7"},
        {MOST_ROWS: "-1", MOST_BYTES: "2"},
        {MOST_ROWS: "-1", MOST_BYTES: "500"},
        {MOST_ROWS: "9", MOST_BYTES: "1k"},
        {MOST_ROWS: "0", MOST_BYTES: "3000"},
    ],
    ids=str,
)
def test_frames_are_cut_where_spark_cuts_them(spark, limits):
    theirs = sizes(spark, limits, initial=False, pandas=True, stock=True)
    assert sizes(spark, limits, initial=False, pandas=True, stock=False) == theirs


@pytest.mark.parametrize("pandas", [False, True])
@pytest.mark.parametrize("limits", [{MOST_ROWS: "3"}, {MOST_ROWS: "-1"}, {MOST_ROWS: "0", MOST_BYTES: "2"}], ids=str)
def test_with_an_initial_state_they_are_cut_where_spark_cuts_them(spark, limits, pandas):
    theirs = sizes(spark, limits, initial=True, pandas=pandas, stock=True)
    assert sizes(spark, limits, initial=True, pandas=pandas, stock=False) == theirs


@pytest.mark.parametrize("seed", range(20))
def test_chunks_cover_all_rows_and_keep_both_limits(seed):
    rng = random.Random(seed)
    counts = [rng.randrange(30), rng.randrange(1, 50)]
    parts = [pa.table({"n": range(count), "s": ["x" * rng.randrange(30) for _ in range(count)]}) for count in counts]
    most_rows, most_bytes = rng.randrange(-2, 20), rng.randrange(1, 300)
    chunks = Chunks({MOST_ROWS: str(most_rows), MOST_BYTES: str(most_bytes)}, parts)
    low = rng.randrange(sum(counts))
    cut = list(chunks.cut(low, sum(counts)))
    assert [start for start, _ in cut] == [low, *(end for _, end in cut[:-1])] and cut[-1][1] == sum(counts)
    assert all(end - start > 0 and (most_rows <= 0 or end - start <= most_rows) for start, end in cut)
    longest = max(8 + 4 + 30 + 1, most_bytes)
    assert all((end - start) * 8 <= 2 * longest + 16 for start, end in cut)


TYPES = [
    *(pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.decimal128(12, 2)),
    *(pa.timestamp("us", "UTC"), pa.null(), pa.list_(pa.int32()), pa.map_(pa.string(), pa.bool_())),
    pa.struct([("x", pa.int16()), ("y", pa.list_(pa.string()))]),
]


@pytest.mark.parametrize("nulls", [0.0, 0.3])
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_bytes_are_those_of_buffers_without_more_rows(kind, nulls):
    rng = random.Random(str(kind))
    nulls = 0.0 if pa.types.is_struct(kind) else nulls  # what fields of a null struct hold is up to who makes it
    for _ in range(20):
        whole = pa.array([None if rng.random() < nulls else _value(rng, kind) for _ in range(rng.randrange(60))], kind)
        part = whole.slice(rng.randrange(len(whole) + 1), rng.randrange(60))
        if len(part):
            assert _bytes(part, written=False) == pa.array(part.to_pylist(), kind).nbytes + 4 * _offsets(kind)
        assert _bytes(part, written=True) >= _bytes(part, written=False)


def _offsets(kind):
    """Buffers of offsets: Arrow's own count is without the last entry of each."""
    own = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)
    return own + sum(_offsets(kind.field(at).type) for at in range(kind.num_fields))


def _value(rng, kind):
    if pa.types.is_struct(kind):
        return {field.name: _value(rng, field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_value(rng, kind.key_type), _value(rng, kind.item_type)) for _ in range(rng.randrange(4))]
    if pa.types.is_list(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return "é" * rng.randrange(9) if pa.types.is_string(kind) else b"x" * rng.randrange(9)
    number = pa.scalar(rng.randrange(2), pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    return None if pa.types.is_null(kind) else number.cast(kind).as_py()


def test_without_a_limit_nothing_is_cut_and_no_bytes_are_counted():
    assert list(Chunks(NO_LIMIT, [pa.table({"n": range(100)})]).cut(10, 90)) == [(10, 90)]
