"""Floodplain's errors arrive at the driver unchanged, also inside the message of an error of Spark."""

import inspect
import traceback

import pytest

from floodplain import errors
from floodplain.errors import Corrupt, Fenced, FloodplainError, UserError
from floodplain.runtime.task_errors import MOST_TRACE, Failure, carried, carried_by, ours

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FloodplainError)]


def made(kind: type[FloodplainError]) -> FloodplainError:
    if kind.__init__ is Exception.__init__ or issubclass(kind, AttributeError):
        return kind("what happened,\nto «what» {and}")
    return kind(**{name: 7 if "epoch" in name else f"the {name}" for name in inspect.signature(kind).parameters})


def users_function() -> None:
    raise ValueError("a user's own")


def raised(kind: type[FloodplainError], *, cause: bool = True) -> FloodplainError:
    try:
        try:
            users_function()
        except ValueError as error:
            raise made(kind) from (error if cause else None)
    except FloodplainError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_comes_back_with_its_message_and_fields_and_the_trace_behind(kind):
    error = raised(kind)
    found = Failure.of(error).error()
    assert type(found) is kind and str(found) == str(error) and vars(made(kind)).items() <= vars(found).items()
    shown = "".join(traceback.format_exception(found))
    assert 'test_task_errors.py", line' in shown and "in users_function" in shown and "ValueError: a user's own" in shown
    assert shown.index(str(error)) < shown.index("in users_function")


class Narrower(Fenced):
    """Of a module that the driver may not have."""


def test_a_kind_that_is_not_ours_comes_back_as_the_one_above_it():
    found = Failure.of(Narrower("mine")).error()
    assert type(found) is Fenced and str(found) == "mine"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_comes_through_what_spark_says_of_a_failed_task(kind):
    with pytest.raises(kind) as before, carried():
        raise raised(kind)
    trace = "".join(traceback.format_exception(before.value))
    told = (
        f"Job aborted due to stage failure: Lost task 0.3: PythonException: {trace}\n\n\tat org.apache.spark.Some(Where.scala:1)"
    )
    with pytest.raises(kind) as after, ours():
        raise RuntimeError(told)
    assert str(after.value) == str(before.value) and after.value.__suppress_context__


def test_what_is_not_ours_stays_as_it_is():
    other = RuntimeError('floodplain-failure: {"kind": 1}')
    with pytest.raises(RuntimeError) as found, ours():
        raise other
    assert found.value is other
    with pytest.raises(KeyError) as found, carried():
        raise KeyError("a")
    assert not hasattr(found.value, "__notes__") and carried_by("nothing") is None


def test_the_end_of_a_long_trace_is_kept():
    error = UserError("short")
    error.__cause__ = ValueError("x" * 3 * MOST_TRACE + "the end")
    assert len(Failure.of(error).trace) == MOST_TRACE + 1 and Failure.of(error).trace.endswith("the end")
    assert Failure.of(Corrupt("file", "this", "that")).fields["last_good_epoch"] is None
