from dataclasses import FrozenInstanceError
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodplain as fp
from floodplain.errors import BadInput, FloodplainError, SchemaMismatch
from floodplain.state.descriptors import Timers, states_of


def add_structs(older: pa.Array, newer: pa.Array) -> pa.Array:
    fields = [pc.add(older.field(i), newer.field(i)) for i in range(older.type.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(older.type))


AVERAGE = "struct<n: long, total: double>"


def average() -> fp.Aggregating:
    return fp.Aggregating(
        "double",
        AVERAGE,
        "double",
        lift=lambda values: pa.StructArray.from_arrays([pa.repeat(1, len(values)), values], ["n", "total"]),
        merge=add_structs,
        finish=lambda kept: pc.divide(kept.field("total"), kept.field("n")),
    )


class Sessions:
    views = fp.Value("long", default=0)
    pages = fp.Map("string", "long")
    trail = fp.List("string", ttl="1 hour")
    output = "user string, views long"

    def process(self) -> None: ...


class LongSessions(Sessions):
    trail = fp.List("string", ttl="1 day")
    pages = None
    seen = fp.Set("string")


def test_the_states_of_a_class_are_found_in_order():
    assert states_of(Sessions) == {
        "views": fp.Value("long", 0),
        "pages": fp.Map("string", "long"),
        "trail": fp.List("string", ttl="1 hour"),
    }


def test_a_class_may_replace_and_drop_what_its_base_declares():
    found = states_of(LongSessions)
    assert set(found) == {"views", "trail", "seen"}
    assert found["trail"].ttl_ms == 86_400_000


def test_declarations_are_frozen_values():
    assert fp.Value("long", ttl="1 hour") == fp.Value("long", ttl="1 hour") != fp.Value("long")
    with pytest.raises(FrozenInstanceError):
        fp.Value("long").default = 3


def test_types_are_texts_or_arrow_types():
    assert fp.Value("long").arrow == fp.Value(pa.int64()).arrow == pa.int64()
    assert fp.Value("a int, b string").arrow == pa.struct([("a", pa.int32()), ("b", pa.string())])


def test_times_to_live():
    assert fp.Value("long").ttl_ms == 0
    assert fp.Set("long", ttl=timedelta(seconds=2)).ttl_ms == 2000
    assert fp.Value("long", ttl="1 s", ttl_clock="event").watermark == "event_time"
    assert fp.Value("long", ttl="1 s").watermark == "processing_time"


def test_numbers_in_a_map_add_up_unless_something_else_is_said():
    assert fp.Map("string", "long").merge_name == "sum"
    assert fp.Map("string", "decimal(5,2)").merge_name == "sum"
    assert fp.Map("string", "string").merge_name == ""
    assert fp.Map("string", "long", merge="max").merge_name == "max"
    assert fp.Map("string", "long", merge="").merge_name == ""


def test_a_merge_of_ones_own_is_known_by_its_import_path():
    assert average().merge_name == "tests.state.test_descriptors:add_structs"
    assert fp.Reducing(AVERAGE, add_structs).merge_name == "tests.state.test_descriptors:add_structs"


@pytest.mark.parametrize(
    ("declare", "kind", "message"),
    [
        (lambda: fp.Value("lng"), SchemaMismatch, "did you mean long"),
        (lambda: fp.Value("long", default="x"), SchemaMismatch, "default 'x'"),
        (lambda: fp.Value("tinyint", default=300), SchemaMismatch, "default 300"),
        (lambda: fp.Value("long", ttl="soon"), BadInput, "time to live 'soon'"),
        (lambda: fp.Value("long", ttl="0 s"), BadInput, "keep nothing"),
        (lambda: fp.Value("long", ttl_clock="wall"), BadInput, "no clock 'wall'"),
        (lambda: fp.Reducing("string", "sum"), SchemaMismatch, "needs a number"),
        (lambda: fp.Reducing("long", "product"), BadInput, "there is no merge function 'product'"),
        (lambda: fp.Reducing("long", lambda a, b: a), BadInput, "top level of a module"),
        (lambda: fp.Map("map<int,int>", "long"), SchemaMismatch, "cannot be a key"),
        (lambda: fp.Map("string", "string", merge="sum"), SchemaMismatch, "needs a number"),
        (lambda: fp.Set("array<map<int,int>>"), SchemaMismatch, "cannot be a key"),
        (lambda: fp.List("string", prefetch=" "), BadInput, "prefetch"),
        (lambda: fp.List("strng"), SchemaMismatch, "did you mean string"),
        (lambda: Timers("sometime"), BadInput, "no clock 'sometime'"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_declared(declare, kind, message):
    assert issubclass(kind, FloodplainError)
    with pytest.raises(kind, match=message):
        declare()
