"""State descriptors, which users declare in the class body of a process function. Handles read and write the state.

A state that was never written reads as its default. That is not the same as null: see ``Value.nullable``.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, overload

import pyarrow as pa

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import check_key_type
from floodplain.lossless import UNFIT
from floodplain.state.durations import to_ms
from floodplain.state.row_expressions import ALL, LAZY, parse_paths
from floodplain.state.types import as_arrow
from floodplain.state.value_check import converter_for
from floodplain.store.rows import merge_functions
from floodplain.store.rows.merge_functions import Combine, register_merge
from floodplain.versions.records.schema import PROCESSING_TIME

if TYPE_CHECKING:
    from floodplain.state.handles import ReducingHandle, ValueHandle  # noqa: F401
    from floodplain.state.lists import ListHandle  # noqa: F401
    from floodplain.state.maps import MapHandle, SetHandle  # noqa: F401
    from floodplain.state.unkeyed import BroadcastHandle, TaskValueHandle  # noqa: F401

TimeKind: TypeAlias = Literal["processing", "event"]
EVENT_TIME = "event_time"
"""The clock of event-time ttls; the other one is ``PROCESSING_TIME``."""
WATERMARKS: dict[str, str] = {"processing": PROCESSING_TIME, "event": EVENT_TIME}

Type: TypeAlias = str | pa.DataType
"""A type in Spark's notation (``"array<long>"``), or an Arrow type."""

Vectorised: TypeAlias = Callable[[pa.Array], pa.Array]
_Handle = TypeVar("_Handle")


class _HandledBy(Generic[_Handle]):
    """Tells type checkers that a state declared in the body of a class is a handle in its methods."""

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def __get__(self, process: None, owner: object) -> Self: ...
        @overload
        def __get__(self, process: object, owner: object) -> _Handle: ...
        def __get__(self, process: object, owner: object) -> Any: ...


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The base of all states with a ttl."""

    _: KW_ONLY
    ttl: str | timedelta | None = None
    """How long an entry lives after its last write, as ``"1 hour"``; by default for ever."""
    ttl_clock: TimeKind = "processing"
    """Whether it expires by processing time or by event time. By event time, the ttl starts at the newest event time among the
    rows of the key in the epoch, or at the watermark if that is later. The entry expires when the watermark passes the end of
    the ttl, and all rows that are not late see it. With event time, merges read the old value first."""
    was: str | None = None
    """The former name of a renamed state, whose entries are kept."""

    def __post_init__(self) -> None:
        _check_time_kind(self.ttl_clock)
        if self.ttl is None and self.ttl_clock != "processing":
            raise BadInput(f"ttl_clock={self.ttl_clock!r} is the clock of a ttl: set one, as ttl='1 hour'")
        if self.ttl is not None and not self.ttl_ms:
            raise BadInput(f"a time to live of {self.ttl!r} would keep nothing: omit it to keep entries for ever")

    @property
    def ttl_ms(self) -> int:
        return 0 if self.ttl is None else to_ms(self.ttl, "time to live")

    @property
    def watermark(self) -> str:
        return WATERMARKS[self.ttl_clock]


@dataclass(frozen=True, slots=True)
class Value(Descriptor, _HandledBy["ValueHandle"]):
    """One value per key."""

    type: Type
    default: Any = None
    """The value of a key without one: never set, cleared or expired."""
    _: KW_ONLY
    nullable: bool = True
    """Whether a value set to null differs from one that was never set; that takes two bits per key (8 bytes with a ttl)."""
    companion: str | None = None
    """Another value without which this one is meaningless: a changed pipeline that would lose only one of them is refused."""
    whole: bool = False
    """Whether its fields depend on each other, as those of an accumulator: then no field can be added or dropped."""

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        object.__setattr__(self, "default", _converted_default(self.default, self.arrow))

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Reducing(Descriptor, _HandledBy["ReducingHandle"]):
    """One value per key that is written by merging: ``merge`` folds operands into the stored value, without reading it first."""

    type: Type
    merge: str | Combine
    """``sum``, ``min``, ``max``, ``count``, ``append``, or a function ``(older, newer) -> merged`` over Arrow arrays,
    associative, at the top level of a module."""
    default: Any = None

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        object.__setattr__(self, "default", _converted_default(self.default, self.arrow))
        _check_merge(self.merge_name, self.arrow)

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)

    @property
    def merge_name(self) -> str:
        return _merge_name(self.merge)


@dataclass(frozen=True, slots=True)
class Aggregating(Descriptor, _HandledBy["ReducingHandle"]):
    """Like ``Reducing``, with an accumulator: ``lift`` converts inputs to it, ``merge`` folds, ``finish`` computes the result.

    All three work on whole Arrow arrays. The accumulator of an average is ``"struct<n: long, total: double>"``.
    """

    input: Type
    state: Type
    output: Type
    _: KW_ONLY
    lift: Vectorised
    merge: str | Combine
    finish: Vectorised
    default: Any = None
    """The result of a key without a value."""

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        _ = self.arrow_input
        object.__setattr__(self, "default", _converted_default(self.default, self.arrow_output))
        _check_merge(self.merge_name, self.arrow)

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.state)

    @property
    def arrow_input(self) -> pa.DataType:
        return as_arrow(self.input)

    @property
    def arrow_output(self) -> pa.DataType:
        return as_arrow(self.output)

    @property
    def merge_name(self) -> str:
        return _merge_name(self.merge)


@dataclass(frozen=True, slots=True)
class _Many(Descriptor):
    _: KW_ONLY
    prefetch: str = ALL
    """``"all"``: all entries of the epoch's keys are fetched when the first is read, in batches of up to the setting
    ``prefetch_bytes``. ``"lazy"``: each entry is fetched when it is read. Else columns of the rows, as in ``"page"``,
    ``"click.page"`` or ``"page, referrer"``: the entries with these keys are fetched in one multi-get, others lazily."""

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        if not isinstance(self.prefetch, str):
            raise BadInput(f"prefetch {self.prefetch!r} is not possible: use 'all', 'lazy' or columns of the rows")
        if self.prefetch not in (ALL, LAZY):
            parse_paths(self.prefetch)


@dataclass(frozen=True, slots=True)
class List(_Many, _HandledBy["ListHandle"]):
    """Values of a key in the order in which they were appended; appending does not rewrite the list."""

    type: Type

    def __post_init__(self) -> None:
        _Many.__post_init__(self)
        if self.prefetch not in (ALL, LAZY):
            raise BadInput(
                f"prefetch {self.prefetch!r} is not possible for a list, whose elements have no keys: use 'all' or 'lazy'"
            )
        _ = self.arrow

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Map(_Many, _HandledBy["MapHandle"]):
    """Entries of a key, by an entry key of any type that Spark can group by."""

    key: Type
    value: Type
    merge: str | Combine | None = None
    """How ``merge`` folds operands into an entry; by default numbers are added."""
    _: KW_ONLY
    whole: bool = False
    """As ``Value.whole``, for its keys and its values."""

    def __post_init__(self) -> None:
        _Many.__post_init__(self)
        check_key_type("of the map", self.arrow_key)
        if self.merge_name:
            _check_merge(self.merge_name, self.arrow_value)

    @property
    def arrow_key(self) -> pa.DataType:
        return as_arrow(self.key)

    @property
    def arrow_value(self) -> pa.DataType:
        return as_arrow(self.value)

    @property
    def merge_name(self) -> str:
        if self.merge is None:
            return "" if merge_functions.check_type("sum", self.arrow_value) else "sum"
        return _merge_name(self.merge)


@dataclass(frozen=True, slots=True)
class Set(_Many, _HandledBy["SetHandle"]):
    """Distinct elements of a key, of any type that Spark can group by."""

    type: Type

    def __post_init__(self) -> None:
        _Many.__post_init__(self)
        check_key_type("of the set", self.arrow)

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers of a key: by the watermark, or by processing time."""

    time: TimeKind = "event"

    def __post_init__(self) -> None:
        _check_time_kind(self.time)


@dataclass(frozen=True, slots=True)
class TaskValue(_HandledBy["TaskValueHandle"]):
    """One value per slot, not per key, such as a read position of a task. Rescaling merges and splits it."""

    type: Type
    default: Any = None
    _: KW_ONLY
    split: Callable[[Any, int], Sequence[Any]]
    """``split(value, n)``: one value for each of ``n`` slots; None for no value."""
    merge: Callable[[list[Any]], Any]
    """``merge(values)``: one value from those of all slots."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", _converted_default(self.default, self.arrow))

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Broadcast(_HandledBy["BroadcastHandle"]):
    """A small map that is the same in all tasks; changed by the rows of the broadcast input, in ``on_broadcast``."""

    key: Type
    value: Type

    def __post_init__(self) -> None:
        check_key_type("of the broadcast map", self.arrow_key)
        _ = self.arrow_value

    @property
    def arrow_key(self) -> pa.DataType:
        return as_arrow(self.key)

    @property
    def arrow_value(self) -> pa.DataType:
        return as_arrow(self.value)


State: TypeAlias = Value | Reducing | Aggregating | List | Map | Set | Timers | TaskValue | Broadcast


def states_of(operator: type) -> dict[str, State]:
    """The states declared in a class body and in its bases, in order; a declaration overrides that of a base."""
    states: dict[str, State] = {}
    for base in reversed(operator.__mro__):
        for name, declared in vars(base).items():
            if isinstance(declared, State):
                states[name] = declared
            else:
                states.pop(name, None)
    return states


def _check_time_kind(kind: str) -> None:
    if kind not in WATERMARKS:
        raise BadInput(f"there is no clock {kind!r}: use 'processing' or 'event'")


def _converted_default(default: Any, type_: pa.DataType) -> Any:
    """The default as the store would return it."""
    if default is None:
        return None
    try:
        converted = converter_for(type_)(default)
        pa.array([converted], type_)
    except UNFIT as error:
        raise SchemaMismatch(f"default {default!r} is not a {type_}: {error}") from error
    return converted


def _merge_name(merge: str | Combine) -> str:
    """The name of a merge function. A callable is registered, so that every process with the declaration can run it."""
    return merge if isinstance(merge, str) else register_merge(merge)


def _check_merge(name: str, type_: pa.DataType) -> None:
    if merge_functions.find(name) is None:
        raise BadInput(f"there is no merge function {name!r}: use sum, min, max, count, append or a callable")
    problem = merge_functions.check_type(name, type_)
    if problem:
        raise SchemaMismatch(problem)
