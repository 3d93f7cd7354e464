"""Spark's ``StatefulProcessorHandle``: on the driver it records the states that ``init`` declares, in a task it opens them."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import index
from typing import Any, Literal, TypeAlias

import msgspec
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import StructType

from floodplain.spark.transform_with_state.errors import (
    NO_TIME,
    PROCESSING,
    Phase,
    already_defined,
    check_name,
    no_key,
    ttl_in_wrong_mode,
    ttl_not_positive,
    wrong_phase,
    wrong_time_mode,
)
from floodplain.spark.transform_with_state.states import Deleted, LiveList, LiveMap, LiveValue, Unusable
from floodplain.spark.transform_with_state.types import Codec
from floodplain.state.descriptors import List, Map, State, Value
from floodplain.state.timers import TimersHandle
from floodplain.versions.records.definition import SparkVariable

Kind: TypeAlias = Literal["value", "list", "map"]

_KINDS = {"value": LiveValue, "list": LiveList, "map": LiveMap}
_PLAIN_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*\Z")
_LONGEST_PLAIN = 41
_LONGEST_SLUG = 28


@dataclass(frozen=True)
class Declared:
    """One state variable as ``init`` declared it."""

    kind: Kind
    schemas: tuple[StructType, ...]
    """Of its values; of a map, of its keys and values."""
    ttl_ms: int | None
    stored: tuple[StructType, ...] = ()
    """The same with the names of fields under which they are stored, where Spark keeps those that they first had."""
    whole: bool = False
    """Whether a value of one field is stored as a struct all the same."""

    def descriptor(self) -> State:
        ttl = timedelta(milliseconds=self.ttl_ms) if self.ttl_ms else None
        arrows = [codec.arrow for codec in self._codecs()]
        match self.kind:
            case "value":
                return Value(arrows[0], nullable=len(self.schemas[0]) == 1 and not self.whole, ttl=ttl)
            case "list":
                return List(arrows[0], ttl=ttl)
            case _:
                return Map(arrows[0], arrows[1], ttl=ttl)

    def recorded(self, name: str, former: tuple[str, ...] = ()) -> SparkVariable:
        """As the log keeps it. ``former``: the schemas of its values before."""
        schemas = tuple(schema.json() for schema in self.as_stored)
        ttl_ms = self.ttl_ms or 0
        return SparkVariable(name, self.kind, schemas, ttl=bool(ttl_ms), former=former, ttl_ms=ttl_ms, whole=self.whole)

    def _codecs(self) -> list[Codec]:
        pairs = list(zip(self.schemas, self.as_stored, strict=True))
        return [*(Codec(*pair) for pair in pairs[:-1]), Codec(*pairs[-1], whole=self.whole)]

    @property
    def as_stored(self) -> tuple[StructType, ...]:
        return self.stored or self.schemas

    def live(self, name: str, handle: Unusable) -> Any:
        """The object that a processor works with."""
        codecs = self._codecs()
        return LiveList(name, codecs[0], handle) if self.kind == "list" else _KINDS[self.kind](*codecs, handle)


def declared_as(variable: SparkVariable) -> Declared:
    """What ``recorded`` was made from."""
    schemas = tuple(StructType.fromJson(msgspec.json.decode(schema)) for schema in variable.schemas)
    return Declared(variable.kind, schemas, variable.ttl_ms or None, whole=variable.whole)


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

    def _state(self, kind: Kind, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:
        raise NotImplementedError

    def _check_new(self, kind: str, name: str, existing: Collection[tuple[str, str]]) -> str:
        """The start of errors about a new state variable. Raises if there is one already, or if it is too late for one."""
        failure = f"Error initializing {kind} state"
        if (kind, name) in existing:
            raise PySparkRuntimeError(f"{failure}: {kind.capitalize()} state {name} already exists")
        self._check_init(failure, f"get_{kind}_state")
        return failure

    def _check_init(self, failure: str, operation: str) -> None:
        if self.phase != self._init_phase:
            raise PySparkRuntimeError(f"{failure}: {wrong_phase(operation, self.phase)}")

    def _check_timers(self, failure: str, operation: str) -> None:
        if self.time_mode == NO_TIME:
            raise PySparkRuntimeError(f"{failure}: {wrong_time_mode(operation, self.time_mode)}")
        if self.phase < Phase.INITIALIZED or self.phase >= Phase.TIMER_PROCESSED:
            raise PySparkRuntimeError(f"{failure}: {wrong_phase(operation, self.phase)}")


class Recorder(_Handle):
    """On the driver: records the states that ``init`` declares, and refuses what Spark would refuse."""

    def __init__(self, time_mode: str, parse: Callable[[str], StructType], *, static: bool = False) -> None:
        """``parse`` reads a schema from text. ``static``: for such input Spark runs ``init`` in tasks only."""
        phase = Phase.CREATED if static else Phase.PRE_INIT
        super().__init__(time_mode, phase, phase)
        self._parse = parse
        self._static = static
        self._defined: set[str] = set()
        """All names that were ever declared: Spark's driver does not forget those that are deleted."""
        self.declared: dict[str, Declared] = {}
        self.deleted: dict[str, Declared | None] = {}
        """With what they were declared as, if they were."""

    def _state(self, kind: Kind, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:
        parsed = tuple(self._schema(schema) for schema in schemas)
        failure = self._check_new(kind, name, {(declared.kind, name) for name, declared in self.declared.items()})
        if name in self.declared or (name in self._defined and kind != "map" and not self._static):
            raise PySparkRuntimeError(f"{failure}: {already_defined(name)}")
        self._check_ttl(failure, name, ttl_ms)
        check_name(failure, "create_col_family", name)
        self.declared[name] = Declared(kind, parsed, index(ttl_ms) if ttl_ms else None)
        self._defined.add(name)
        return self.declared[name].live(name, Unusable(kind, partial(self._unusable, name)))

    def _unusable(self, name: str, call: str) -> str:
        return no_key(name) if self.phase == Phase.CREATED else wrong_phase(f"{name}.{call}", self.phase)

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
            raise PySparkRuntimeError(f"{failure}: {ttl_in_wrong_mode(name, self.time_mode)}")
        if ttl_ms < 0:
            raise PySparkRuntimeError(f"{failure}: {ttl_not_positive(name)}")

    def deleteIfExists(self, stateName: str) -> None:
        failure = "Error deleting state"
        self._check_init(failure, "delete_if_exists")
        check_name(failure, "remove_col_family", stateName)
        self.deleted[stateName] = self.declared.pop(stateName, None) or self.deleted.get(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        self._check_timers("Error register timer", "register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: ARG002
        self._check_timers("Error deleting timer", "delete_timer")

    def listTimers(self) -> Iterator[int]:
        self._check_timers("Error listing timers", "list_timers")
        return iter(())


class LiveHandle(_Handle):
    """In a task: the states of the current key. ``init`` runs again in each task and gets what it declared on the driver.

    As in Spark, an object that ``init`` was given stands for the state of its kind and name, whichever call made that.
    """

    def __init__(self, time_mode: str, declared: Mapping[str, Declared], timers: TimersHandle) -> None:
        super().__init__(time_mode, Phase.CREATED, Phase.CREATED)
        self._declared = declared
        self._timers = timers
        self._existing: set[tuple[str, str]] = set()
        self._objects: list[tuple[str, str, Any]] = []

    def _state(self, kind: Kind, name: str, schemas: tuple[Any, ...], ttl_ms: int | None) -> Any:  # noqa: ARG002
        self._check_new(kind, name, self._existing)
        declared = self._declared.get(name)
        if declared is None or declared.kind != kind:
            schema = StructType().add("value", "long")  # declared here and not on the driver, or deleted further on
            declared = Declared(kind, (schema, schema) if kind == "map" else (schema,), None)
        self._existing.add((kind, name))
        made = declared.live(name, _without_key(kind, name))
        self._objects.append((kind, name, made))
        return made

    def attach(self, handles: Mapping[str, Any]) -> None:
        """``init`` is over: states act on the key at hand from now on."""
        self.phase = Phase.INITIALIZED
        for kind, name, made in self._objects:
            made.handle = handles[name] if self._is_there(kind, name) else Deleted(kind, name)

    def _is_there(self, kind: str, name: str) -> bool:
        declared = self._declared.get(name)
        return (kind, name) in self._existing and declared is not None and declared.kind == kind

    def detach(self) -> None:
        """All callbacks are over: no key is at hand any more."""
        self.phase = Phase.TIMER_PROCESSED
        for kind, name, made in self._objects:
            if self._is_there(kind, name):
                made.handle = _without_key(kind, name)

    def deleteIfExists(self, stateName: str) -> None:
        failure = "Error deleting state"
        self._check_init(failure, "delete_if_exists")
        check_name(failure, "remove_col_family", stateName)
        self._existing -= {(kind, stateName) for kind in _KINDS}
        for kind, name, made in self._objects:
            if name == stateName:
                made.handle = Deleted(kind, name)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("Error register timer", "register_timer")
        self._timers.add(_time(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("Error deleting timer", "delete_timer")
        self._timers.delete(_time(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        self._check_timers("Error listing timers", "list_timers")
        return iter(self._timers.all())


def _without_key(kind: str, name: str) -> Unusable:
    return Unusable(kind, lambda _: no_key(name))


def _time(at: Any) -> int:
    at_ms = index(at)
    if not -(1 << 63) <= at_ms < 1 << 63:
        raise ValueError(f"Value out of range: {at}")
    return at_ms
