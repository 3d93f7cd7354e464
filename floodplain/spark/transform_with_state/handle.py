"""Spark's ``StatefulProcessorHandle``: on the driver it records the states that ``init`` declares, in a task it opens them."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from operator import index
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import StructType

from floodplain.spark.transform_with_state.states import LiveList, LiveMap, LiveValue, NoKey
from floodplain.spark.transform_with_state.types import Codec
from floodplain.state.descriptors import List, Map, State, Value
from floodplain.state.timers import TimersHandle

NO_TIME, PROCESSING, EVENT = "none", "processingtime", "eventtime"
TIME_MODES = {NO_TIME: "None", PROCESSING: "ProcessingTime", EVENT: "EventTime"}
"""As the JVM calls them."""

_KINDS = {"value": LiveValue, "list": LiveList, "map": LiveMap}
_PLAIN_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*\Z")
_LONGEST_PLAIN = 41
_LONGEST_SLUG = 28


class Phase(IntEnum):
    """How far a processor is, in the order of Spark's own states of a handle."""

    CREATED = 0
    PRE_INIT = 1
    INITIALIZED = 2
    DATA_PROCESSED = 3
    TIMER_PROCESSED = 4
    CLOSED = 5


@dataclass(frozen=True)
class Declared:
    """One state variable as ``init`` declared it."""

    kind: str
    schemas: tuple[StructType, ...]
    """Of its values; of a map, of its keys and values."""
    ttl_ms: int | None

    def descriptor(self) -> State:
        ttl = timedelta(milliseconds=self.ttl_ms) if self.ttl_ms else None
        arrows = [Codec(schema).arrow for schema in self.schemas]
        match self.kind:
            case "value":
                return Value(arrows[0], nullable=len(self.schemas[0]) == 1, ttl=ttl)
            case "list":
                return List(arrows[0], ttl=ttl)
            case _:
                return Map(arrows[0], arrows[1], ttl=ttl)

    def live(self, name: str) -> Any:
        """The object a processor works with, with no key at hand yet."""
        codecs = [Codec(schema) for schema in self.schemas]
        nowhere = NoKey(
            f"Error accessing state {name}: [INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName={name}"
        )
        return LiveList(name, codecs[0], nowhere) if self.kind == "list" else _KINDS[self.kind](*codecs, nowhere)


def table_names(names: Collection[str], taken: Collection[str]) -> dict[str, str]:
    """For state names of any form names that tables allow: always the same for the same name, and all different.

    ``taken``: what must not be used, because keys or timers have it.
    """
    tables = {name: _table_name(name, taken) for name in names}
    if len(set(tables.values())) < len(tables):
        raise PySparkRuntimeError(f"two of the state names {sorted(names)} cannot be told apart: rename one of them")
    return tables


def _table_name(name: str, taken: Collection[str]) -> str:
    if _PLAIN_NAME.match(name) and len(name) <= _LONGEST_PLAIN and name not in taken:
        return name
    slug = re.sub(r"[^a-z0-9]+", "_", name.lower())[:_LONGEST_SLUG].strip("_") or "state"
    return f"{slug}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


class _Handle(StatefulProcessorHandle):
    """The common base: the calls of a processor, and when it may make them."""

    def __init__(self, time_mode: str, phase: Phase, init_phase: Phase) -> None:
        self.time_mode = time_mode
        self.phase = phase
        self._init_phase = init_phase

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._state("value", stateName, (schema,), ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._state("list", stateName, (schema,), ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._state("map", stateName, (userKeySchema, valueSchema), ttlDurationMs)

    def _state(self, kind: str, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:
        raise NotImplementedError

    def _check_init(self, failure: str, operation: str) -> None:
        if self.phase != self._init_phase:
            raise _wrong_phase(failure, operation, self.phase)

    def _check_timers(self, failure: str, operation: str) -> None:
        if self.time_mode == NO_TIME:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] Failed to perform stateful "
                f"processor operation={operation} with invalid timeMode={TIME_MODES[self.time_mode]} SQLSTATE: 42802"
            )
        if self.phase < Phase.INITIALIZED or self.phase >= Phase.TIMER_PROCESSED:
            raise _wrong_phase(failure, operation, self.phase)


def _wrong_phase(failure: str, operation: str, phase: Phase) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        f"{failure}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] Failed to perform stateful "
        f"processor operation={operation} with invalid handle state={phase.name}. SQLSTATE: 42802"
    )


class Recorder(_Handle):
    """On the driver: records the states that ``init`` declares, and refuses what Spark would refuse."""

    def __init__(self, time_mode: str, parse: Callable[[str], StructType]) -> None:
        """``parse`` reads a schema from text."""
        super().__init__(time_mode, Phase.PRE_INIT, Phase.PRE_INIT)
        self._parse = parse
        self.declared: dict[str, Declared] = {}
        self.deleted: set[str] = set()

    def _state(self, kind: str, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:
        failure = f"Error initializing {kind} state"
        self._check_init(failure, f"get_{kind}_state")
        parsed = tuple(self._schema(schema) for schema in schemas)
        _check_name(failure, name)
        if name in self.declared:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name {name} has already "
                "been defined in the StatefulProcessor. SQLSTATE: 42802"
            )
        self._check_ttl(failure, name, ttl_ms)
        self.declared[name] = Declared(kind, parsed, index(ttl_ms) if ttl_ms else None)
        return self.declared[name].live(name)

    def _schema(self, schema: Any) -> StructType:
        if isinstance(schema, str):
            try:
                return self._parse(schema)
            except Exception as error:
                raise PySparkRuntimeError(f"Error parsing string schema: {error}") from error
        return StructType.fromJson(schema.jsonValue())

    def _check_ttl(self, failure: str, name: str, ttl_ms: int | None) -> None:
        if not ttl_ms:
            return
        if self.time_mode != PROCESSING:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for state={name} in "
                f"timeMode={TIME_MODES[self.time_mode]}, use TimeMode.ProcessingTime() instead. SQLSTATE: 42802"
            )
        if ttl_ms < 0:
            raise PySparkRuntimeError(
                f"{failure}: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero for State "
                f"store operation=update on state={name}. SQLSTATE: 42802"
            )

    def deleteIfExists(self, stateName: str) -> None:
        self._check_init("Error deleting state", "delete_if_exists")
        self.declared.pop(stateName, None)
        self.deleted.add(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        self._check_timers("Error register timer", "register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        self._check_timers("Error deleting timer", "delete_timer")

    def listTimers(self) -> Iterator[int]:
        self._check_timers("Error listing timers", "list_timers")
        return iter(())


def _check_name(failure: str, name: str) -> None:
    if not name or name != name.strip() or name == "default":
        raise PySparkRuntimeError(
            f"{failure}: [STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME] Failed to perform column family "
            f"operation=create_col_family with invalid name={name}. Column family name cannot be empty or include "
            "leading/trailing spaces or use the reserved keyword=default SQLSTATE: 42802"
        )
    if name[0] in "_$":
        raise PySparkRuntimeError(
            f"{failure}: [STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS] Failed to create column family with "
            f"unsupported starting character and name={name}. SQLSTATE: 42802"
        )


class LiveHandle(_Handle):
    """In a task: the states of the current key. ``init`` runs again in each task and gets what it declared on the driver."""

    def __init__(self, time_mode: str, declared: Mapping[str, Declared], timers: TimersHandle) -> None:
        super().__init__(time_mode, Phase.CREATED, Phase.CREATED)
        self._declared = declared
        self._timers = timers
        self._live: dict[str, Any] = {}
        self._nowhere: dict[str, Any] = {}

    def _state(self, kind: str, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:  # noqa: ARG002
        failure = f"Error initializing {kind} state"
        self._check_init(failure, f"get_{kind}_state")
        declared = self._declared.get(name)
        if declared is None or declared.kind != kind:
            return _gone(kind, name)  # declared here and not on the driver, or deleted by deleteIfExists
        self._live[name] = declared.live(name)
        return self._live[name]

    def attach(self, handles: Mapping[str, Any]) -> None:
        """``init`` is over: states act on the key at hand from now on."""
        self.phase = Phase.INITIALIZED
        for name, live in self._live.items():
            self._nowhere[name] = live.handle
            live.handle = handles[name]

    def detach(self) -> None:
        """All callbacks are over: no key is at hand any more."""
        self.phase = Phase.TIMER_PROCESSED
        for name, live in self._live.items():
            live.handle = self._nowhere[name]

    def deleteIfExists(self, stateName: str) -> None:
        self._check_init("Error deleting state", "delete_if_exists")
        if stateName in self._live:
            gone = self._live.pop(stateName)
            gone.handle = NoKey(f"Error accessing state: state {stateName} is not initialized.")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("Error register timer", "register_timer")
        self._timers.add(_time(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("Error deleting timer", "delete_timer")
        self._timers.delete(_time(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        self._check_timers("Error listing timers", "list_timers")
        return iter(self._timers.all())


def _gone(kind: str, name: str) -> Any:
    schema = StructType().add("value", "long")
    state = Declared(kind, (schema, schema) if kind == "map" else (schema,), None).live(name)
    state.handle = NoKey(f"Error accessing state: {kind.capitalize()} state {name} is not initialized.")
    return state


def _time(at: Any) -> int:
    at_ms = index(at)
    if not -(1 << 63) <= at_ms < 1 << 63:
        raise ValueError(f"Value out of range: {at}")
    return at_ms
