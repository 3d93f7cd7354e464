"""The options of Spark's ``statestore`` reader: read, checked against each other, each honoured or refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from floodplain.spark.state_reader.conditions import conflict, empty_value, invalid_value, negative_value, unspecified

PATH = "path"
BATCH_ID = "batchId"
OPERATOR_ID = "operatorId"
STORE_NAME = "storeName"
JOIN_SIDE = "joinSide"
SNAPSHOT_START = "snapshotStartBatchId"
SNAPSHOT_PARTITION = "snapshotPartitionId"
CHANGE_FEED = "readChangeFeed"
CHANGE_START = "changeStartBatchId"
CHANGE_END = "changeEndBatchId"
STATE_VARIABLE = "stateVarName"
TIMERS = "readRegisteredTimers"
FLATTEN = "flattenCollectionTypes"
ALL_FAMILIES = "_readAllColumnFamilies"
STORE_OPTION = "floodplain.store."
"""Prefix of the options of the object store that has the state, as at the start of a query."""

DEFAULT_STORE = "default"
JoinSide: TypeAlias = Literal["left", "right", "none"]


@dataclass(frozen=True)
class StateOptions:
    """What is to be read. Batches that are not refused are the last committed one."""

    path: str
    operator: int = 0
    variable: str | None = None
    timers: bool = False
    flatten: bool = True
    side: JoinSide = "none"
    batch: int | None = None
    partition: int | None = None
    """The only one to read."""
    start: int | None = None
    """Where the rebuilding of that partition would begin."""
    changes: bool = False
    change_start: int = 0
    change_end: int | None = None
    access: Mapping[str, str] = field(default_factory=dict)
    """Of the object store."""

    @property
    def newest(self) -> int | None:
        """The last batch that is read."""
        return self.change_end if self.changes else self.batch

    def check_batches(self, newest: int) -> None:
        """Raises if what is read begins after ``newest``, the last batch that is read."""
        if self.changes and newest < self.change_start:
            why = f"{CHANGE_END} cannot be smaller than {CHANGE_START}; it is {newest}, and {CHANGE_START} is {self.change_start}"
            raise invalid_value(CHANGE_END, why)
        if self.start is not None and self.start > newest:
            raise invalid_value(SNAPSHOT_START, f"value should be less than or equal to {newest}")


def location_of(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Where the state is, and the options of its object store."""
    if PATH not in options:
        raise unspecified(PATH)
    access = {name.removeprefix(STORE_OPTION): value for name, value in options.items() if name.startswith(STORE_OPTION)}
    return options[PATH], access


def whole_number(options: Mapping[str, str], name: str) -> int | None:
    """The value of an option that cannot be negative; None if it is not refused."""
    if name not in options:
        return None
    try:
        value = int(options[name])
    except ValueError:
        raise invalid_value(name, f"a whole number is expected, not {options[name]!r}") from None
    if value < 0:
        raise negative_value(name)
    return value


def state_options(options: Mapping[str, str]) -> StateOptions:
    """Raises what Spark raises, with its condition, for options that are wrong or cannot be together."""
    path, access = location_of(options)
    operator = whole_number(options, OPERATOR_ID) or 0
    _check_store(options)
    variable = options[STATE_VARIABLE].strip() if STATE_VARIABLE in options else None
    timers = _flag(options, TIMERS, False)
    if timers and variable is not None:
        raise conflict([TIMERS, STATE_VARIABLE])
    flatten, side = _flag(options, FLATTEN, True), _side(options)
    if _flag(options, ALL_FAMILIES, False):
        raise invalid_value(ALL_FAMILIES, "it reads the bytes of Spark's own state stores, which Floodplain does not have")
    changes = _flag(options, CHANGE_FEED, False)
    what = StateOptions(path, operator, variable, timers, flatten, side, access=access)
    return _with_changes(what, options) if changes else _with_batch(what, options)


def _with_changes(what: StateOptions, options: Mapping[str, str]) -> StateOptions:
    refused = [name for name in (BATCH_ID, SNAPSHOT_START, SNAPSHOT_PARTITION) if name in options]
    for name in [*([JOIN_SIDE] if what.side != "none" else []), *refused]:
        raise conflict([name, CHANGE_FEED])
    if what.timers:
        raise conflict([TIMERS, CHANGE_FEED])
    first, last = whole_number(options, CHANGE_START), whole_number(options, CHANGE_END)
    if first is None:
        raise unspecified(CHANGE_START)
    return replace(what, changes=True, change_start=first, change_end=last)


def _with_batch(what: StateOptions, options: Mapping[str, str]) -> StateOptions:
    for name in (CHANGE_START, CHANGE_END):
        if name in options:
            raise invalid_value(name, f"Only specify this option when {CHANGE_FEED} is set to true.")
    batch, start, partition = (whole_number(options, name) for name in (BATCH_ID, SNAPSHOT_START, SNAPSHOT_PARTITION))
    if (start is None) != (partition is None):
        raise unspecified(SNAPSHOT_START if start is None else SNAPSHOT_PARTITION)
    return replace(what, batch=batch, start=start, partition=partition)


def _check_store(options: Mapping[str, str]) -> None:
    """Our operators have one store each."""
    store = options.get(STORE_NAME, DEFAULT_STORE).strip()
    if not store:
        raise empty_value(STORE_NAME)
    if store != DEFAULT_STORE and _side(options) != "none":
        raise conflict([JOIN_SIDE, STORE_NAME])
    if store != DEFAULT_STORE:
        raise invalid_value(STORE_NAME, f"an operator of Floodplain has the store {DEFAULT_STORE} only: use {STATE_VARIABLE}")


def _side(options: Mapping[str, str]) -> JoinSide:
    value = options.get(JOIN_SIDE, "none")
    for side in get_args(JoinSide):
        if value == side:
            return side
    raise invalid_value(JOIN_SIDE, f"Valid values are {','.join(get_args(JoinSide))}")


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise invalid_value(name, "Boolean value is expected")
    return value == "true"
