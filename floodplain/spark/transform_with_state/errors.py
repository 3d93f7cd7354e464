"""Spark's errors of ``transformWithState``, in Spark's words.

Spark's state server answers a call with a text, and the Python side puts in front of it what it was about to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.errors.exceptions.captured import PythonException, StreamingQueryException

from floodplain.errors import FloodplainError, UserError

NO_TIME, PROCESSING, EVENT = "none", "processingtime", "eventtime"
TIME_MODES = {NO_TIME: "NoTime", PROCESSING: "ProcessingTime", EVENT: "EventTime"}
"""As the JVM calls them."""
_BLANKS = "".join(map(chr, range(33)))
"""What Java strips from a name."""


class Phase(IntEnum):
    """How far a processor is, in the order of Spark's own states of a handle."""

    CREATED = 0
    PRE_INIT = 1
    INITIALIZED = 2
    DATA_PROCESSED = 3
    TIMER_PROCESSED = 4
    CLOSED = 5


@dataclass(frozen=True)
class Call:
    """A call on a state variable: its name in Spark, and how Spark's error about it begins."""

    name: str
    failure: str


_CHECK, _UPDATE, _CLEAR = "Error checking value state exists", "Error updating value state", "Error clearing value state"
CALLS: dict[str, dict[str, Call]] = {
    "value": {
        "exists": Call("exists", _CHECK),
        "get": Call("get", "Error getting value state"),
        "set": Call("update", _UPDATE),
        "clear": Call("clear", _CLEAR),
    },
    "list": {
        "exists": Call("exists", _CHECK),
        "get": Call("get", "Error getting value state"),
        "set": Call("put", _UPDATE),
        "append": Call("appendValue", _UPDATE),
        "extend": Call("appendList", _UPDATE),
        "clear": Call("clear", _CLEAR),
    },
    "map": {
        "exists": Call("exists", "Error checking map state exists"),
        "get": Call("getValue", "Error getting value"),
        "contains": Call("containsKey", "Error checking if map state contains key"),
        "put": Call("updateValue", "Error updating map state value"),
        "items": Call("iterator", "Error getting value"),
        "keys": Call("keys", "Error getting value"),
        "values": Call("values", "Error getting value"),
        "remove": Call("removeKey", "Error removing key from map state"),
        "clear": Call("clear", "Error clearing map state"),
    },
}
"""By the kind of a state and the method of our own handle that the call comes to."""


def condition(name: str, text: str, sql_state: str) -> str:
    """An error condition as Spark prints it."""
    return f"[{name}] {text} SQLSTATE: {sql_state}"


def no_key(state: str) -> str:
    return condition("INTERNAL_ERROR_TWS", f"Implicit key not found in state store for stateName={state}", "XX000")


def wrong_phase(operation: str, phase: Phase) -> str:
    return condition(
        "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
        f"Failed to perform stateful processor operation={operation} with invalid handle state={phase.name}.",
        "42802",
    )


def wrong_time_mode(operation: str, time_mode: str) -> str:
    return condition(
        "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
        f"Failed to perform stateful processor operation={operation} with invalid timeMode={TIME_MODES[time_mode]}",
        "42802",
    )


def already_defined(state: str) -> str:
    return condition(
        "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
        f"State variable with name {state} has already been defined in the StatefulProcessor.",
        "42802",
    )


def ttl_in_wrong_mode(state: str, time_mode: str) -> str:
    return condition(
        "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
        f"Cannot use TTL for state={state} in timeMode={TIME_MODES[time_mode]}, use TimeMode.ProcessingTime() instead.",
        "42802",
    )


def ttl_not_positive(state: str) -> str:
    return condition(
        "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
        f"TTL duration must be greater than zero for State store operation=update on state={state}.",
        "42802",
    )


def empty_list(state: str) -> str:
    return condition(
        "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE",
        f"Illegal value provided to the State Store Cannot write empty list values to State Store for StateName {state}.",
        "42601",
    )


def wrong_length(required: int, provided: int) -> str:
    return condition(
        "STRUCT_ARRAY_LENGTH_MISMATCH",
        "Input row doesn't have expected number of values required by the schema. "
        f"{required} fields are required while {provided} values are provided.",
        "2201E",
    )


def must_be_nullable(state: str, schema: str) -> str:
    return condition(
        "TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE",
        f"If Avro encoding is enabled, all the fields in the schema for column family {state} must be nullable\n"
        f"when using the TransformWithState operator.\nPlease make the schema nullable. Current schema: {schema}",
        "XXKST",
    )


def emitted_too_old(watermark_ms: int, time_us: int) -> str:
    return condition(
        "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED",
        f"Previous node emitted a row with eventTime={time_us} which is older than current_watermark_value={watermark_ms}\n"
        "This can lead to correctness issues in the stateful operators downstream in the execution pipeline.\n"
        "Please correct the operator logic to emit rows after current global watermark value.",
        "42815",
    )


def check_name(failure: str, operation: str, name: str) -> None:
    """Raises if Spark's state store takes no column family of that name."""
    if not name or name != name.strip(_BLANKS) or name == "default":
        text = condition(
            "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME",
            f"Failed to perform column family operation={operation} with invalid name={name}. Column family name cannot be empty "
            "or include leading/trailing spaces or use the reserved keyword=default",
            "42802",
        )
        raise PySparkRuntimeError(f"{failure}: {text}")
    if name[0] == "$":
        text = condition(
            "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS",
            f"Failed to create column family with unsupported starting character and name={name}.",
            "42802",
        )
        raise PySparkRuntimeError(f"{failure}: {text}")


class StreamFailed(StreamingQueryException):
    """What ended a query, in the form that code for Spark expects."""

    def __init__(self, query_id: str, run_id: str, message: str) -> None:
        self._parameters = {"id": query_id, "runId": run_id, "message": message}
        text = f"Query [id = {query_id}, runId = {run_id}] terminated with exception: {message}"
        super().__init__(desc=condition("STREAM_FAILED", text, "XXKST"), stackTrace="")

    def __str__(self) -> str:
        return str(self._desc)

    def getCondition(self) -> str:
        return "STREAM_FAILED"

    def getMessageParameters(self) -> dict[str, str]:
        return dict(self._parameters)

    def getSqlState(self) -> str:
        return "XXKST"

    def getMessage(self) -> str:
        return str(self)

    def getQueryContext(self) -> list[Any]:
        return []


class WorkerFailed(PythonException):
    """What ended a run over static input, in the form that code for Spark expects."""

    def __init__(self, message: str) -> None:
        self._parameters = {"msg": "An exception was thrown from the Python worker", "traceback": message}
        super().__init__(desc="", stackTrace="")

    def getCondition(self) -> str:
        return "PYTHON_EXCEPTION"

    def getMessageParameters(self) -> dict[str, str]:
        return dict(self._parameters)

    def getSqlState(self) -> str:
        return "38000"

    def getMessage(self) -> str:
        return condition(self.getCondition(), str(self), self.getSqlState())

    def getQueryContext(self) -> list[Any]:
        return []


def as_spark(error: Exception, query_id: str, run_id: str) -> Exception:
    """The error that ended a query, as Spark would raise it: our message, then where it happened. Errors of Spark stay as they
    are."""
    return StreamFailed(query_id, run_id, _whole(error)) if isinstance(error, FloodplainError) else error


@contextmanager
def worker_errors() -> Iterator[None]:
    """A processor that fails does so as Spark's worker does."""
    try:
        yield
    except UserError as error:
        raise WorkerFailed(_whole(error)) from error


def _whole(error: Exception) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])
