"""The quick way from Arrow to Python gives what the slow one gives."""

import datetime as dt

import pyarrow as pa
import pytest

from floodplain.state.pythonic import to_python

TWICE = 1_792_888_200_000_000
"""The clocks of Zurich show this time again an hour later."""
TIMES = [0, 1, None, -1, 1_700_000_000_123_456, TWICE, TWICE + 3_600_000_000]
EDGES = [-62_135_596_800_000_000, 253_402_300_799_999_999]


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich", "America/New_York", "+02:00"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times(unit, zone, edges):
    scale = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    few = TIMES if not edges or unit == "ns" or zone not in (None, "UTC") else TIMES + EDGES
    column = pa.array([None if time is None else time // scale for time in few], pa.int64()).cast(pa.timestamp(unit, zone))
    column = column if unit != "ns" else pa.array([None if time is None else time * 1000 for time in few]).cast(column.type)
    found, wanted = to_python(column), column.to_pylist()
    assert found == wanted
    assert [value and (value.tzinfo, value.fold) for value in found] == [value and (value.tzinfo, value.fold) for value in wanted]
    assert to_python(pa.chunked_array([column.slice(0, 2), column.slice(2)])) == wanted


def test_what_python_has_no_time_for_fails_as_in_arrow():
    far = pa.array([1 << 60]).cast(pa.timestamp("us", "UTC"))
    with pytest.raises((ValueError, OverflowError)):
        far.to_pylist()
    with pytest.raises((ValueError, OverflowError)):
        to_python(far)


@pytest.mark.parametrize(
    "column",
    [pa.array([], pa.timestamp("us", "UTC")), pa.array([None, None], pa.timestamp("us")), pa.array([1, None]), pa.array(["a"])],
)
def test_other_columns(column):
    assert to_python(column) == column.to_pylist()


def test_dates_and_nested_times_are_as_in_arrow():
    day = pa.array([dt.date(2026, 1, 2), None])
    nested = pa.array([[dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], None], pa.list_(pa.timestamp("us", "UTC")))
    assert to_python(day) == day.to_pylist()
    assert to_python(nested) == nested.to_pylist()
