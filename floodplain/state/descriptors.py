"""Declarations of state: what a user writes in the body of an operator. They hold no state; handles act on it.

Reading what was never written gives the default. Setting to null and never having set differ: see ``Value.nullable``.
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
from floodplain.state.value_check import fit_of
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
"""The watermark that event time is judged by, beside ``PROCESSING_TIME``."""
WATERMARKS: dict[str, str] = {"processing": PROCESSING_TIME, "event": EVENT_TIME}

Type: TypeAlias = str | pa.DataType
"""As Spark writes it (``"array<long>"``), or an Arrow type."""

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
    """What all kinds of state with a time to live have in common."""

    _: KW_ONLY
    ttl: str | timedelta | None = None
    """How long an entry lives after it was last written, as ``"1 hour"``; for ever if not given."""
    ttl_clock: TimeKind = "processing"
    """Which time makes it expire: that of the machines, or that of the events. Of the events: it lives from the newest event time
    among the rows that its key had in the epoch, or from the watermark if that is later, until the watermark has passed its
    end, and is there for all rows that are not late. What is merged by then is read first."""
    was: str | None = None
    """What the state was called before: it goes on under its new name."""

    def __post_init__(self) -> None:
        _check_time_kind(self.ttl_clock)
        if self.ttl is None and self.ttl_clock != "processing":
            raise BadInput(f"ttl_clock={self.ttl_clock!r} says by which time a ttl is counted: give one, as ttl='1 hour'")
        if self.ttl is not None and not self.ttl_ms:
            raise BadInput(f"a time to live of {self.ttl!r} would keep nothing: leave it out to keep for ever")

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
    """What reading gives where nothing was set, or what was set has expired."""
    _: KW_ONLY
    nullable: bool = True
    """Whether null can be set, and told from never having been set; that takes two bits per key (8 bytes with a ttl)."""
    beside: str | None = None
    """Another value without which this one means nothing: a pipeline that would read the one and lose the other is refused."""
    whole: bool = False
    """Whether fields inside it mean nothing without each other, as those of a partial result: then none can be added or go."""

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        object.__setattr__(self, "default", _fitted_default(self.default, self.arrow))

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Reducing(Descriptor, _HandledBy["ReducingHandle"]):
    """One value per key that is only ever added to: ``merge`` folds what was there with what comes, without reading it first."""

    type: Type
    merge: str | Combine
    """``sum``, ``min``, ``max``, ``count``, ``append``, or a function ``(older, newer) -> merged`` over Arrow arrays,
    associative, at the top level of a module."""
    default: Any = None

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        object.__setattr__(self, "default", _fitted_default(self.default, self.arrow))
        _check_merge(self.merge_name, self.arrow)

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)

    @property
    def merge_name(self) -> str:
        return _merge_name(self.merge)


@dataclass(frozen=True, slots=True)
class Aggregating(Descriptor, _HandledBy["ReducingHandle"]):
    """Like ``Reducing`` with a form of its own in the store: ``lift`` makes it of inputs, ``merge`` folds, ``finish`` reads it.

    All three work on whole Arrow arrays. An average is kept as ``"struct<n: long, total: double>"``.
    """

    input: Type
    state: Type
    output: Type
    _: KW_ONLY
    lift: Vectorised
    merge: str | Combine
    finish: Vectorised
    default: Any = None
    """Of the output."""

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        _ = self.arrow_input
        object.__setattr__(self, "default", _fitted_default(self.default, self.arrow_output))
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
    """``"all"`` entries of an epoch's keys are fetched at once when the first is read (up to the setting ``prefetch_bytes``; what
    does not fit follows in batches). ``"lazy"``: each entry when it is asked for. Else the columns of the row that name the
    entries it will want, as in ``"page"``, ``"click.page"`` or ``"page, referrer"``: these are fetched at once, others lazily."""

    def __post_init__(self) -> None:
        Descriptor.__post_init__(self)
        if not isinstance(self.prefetch, str):
            raise BadInput(f"prefetch {self.prefetch!r} makes no sense: use 'all', 'lazy' or an expression of the row")
        if self.prefetch not in (ALL, LAZY):
            parse_paths(self.prefetch)


@dataclass(frozen=True, slots=True)
class List(_Many, _HandledBy["ListHandle"]):
    """Values of a key in the order they were appended; appending never rewrites what is there."""

    type: Type

    def __post_init__(self) -> None:
        _Many.__post_init__(self)
        if self.prefetch not in (ALL, LAZY):
            raise BadInput(
                f"prefetch {self.prefetch!r} of a list makes no sense, its elements have no names: use 'all' or 'lazy'"
            )
        _ = self.arrow

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Map(_Many, _HandledBy["MapHandle"]):
    """Entries of a key, found by an entry key of any type that Spark can group by."""

    key: Type
    value: Type
    merge: str | Combine | None = None
    """How ``merge`` on an entry folds; numbers add up if nothing else is said."""
    _: KW_ONLY
    whole: bool = False
    """As of a ``Value``, for its keys and its values."""

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
    """Different elements of a key, of any type that Spark can group by."""

    type: Type

    def __post_init__(self) -> None:
        _Many.__post_init__(self)
        check_key_type("of the set", self.arrow)

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Timers:
    """Times at which a key is called again: by the events' watermark, or by processing time."""

    time: TimeKind = "event"

    def __post_init__(self) -> None:
        _check_time_kind(self.time)


@dataclass(frozen=True, slots=True)
class TaskValue(_HandledBy["TaskValueHandle"]):
    """One value per slot, not per key: what a task knows, such as how far it has read. Rescaling merges and splits it."""

    type: Type
    default: Any = None
    _: KW_ONLY
    split: Callable[[Any, int], Sequence[Any]]
    """``split(value, n)``: one value for each of ``n`` slots; null for none."""
    merge: Callable[[list[Any]], Any]
    """``merge(values)``: one value of those that the slots had."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", _fitted_default(self.default, self.arrow))

    @property
    def arrow(self) -> pa.DataType:
        return as_arrow(self.type)


@dataclass(frozen=True, slots=True)
class Broadcast(_HandledBy["BroadcastHandle"]):
    """A small map that all tasks read whole and have alike; changed by the rows of the broadcast input, in ``on_broadcast``."""

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
    """The states declared in the body of a class and its bases, in order; a declaration of the class replaces its base's."""
    found: dict[str, State] = {}
    for base in reversed(operator.__mro__):
        for name, declared in vars(base).items():
            if isinstance(declared, State):
                found[name] = declared
            else:
                found.pop(name, None)
    return found


def _check_time_kind(kind: str) -> None:
    if kind not in WATERMARKS:
        raise BadInput(f"there is no time {kind!r}: use 'processing' or 'event'")


def _fitted_default(default: Any, type_: pa.DataType) -> Any:
    """As the store would give it back."""
    if default is None:
        return None
    try:
        fitted = fit_of(type_)(default)
        pa.array([fitted], type_)
    except UNFIT as error:
        raise SchemaMismatch(f"default {default!r} is not a {type_}: {error}") from error
    return fitted


def _merge_name(merge: str | Combine) -> str:
    """A function is registered on the way: whoever has the declaration has the code."""
    return merge if isinstance(merge, str) else register_merge(merge)


def _check_merge(name: str, type_: pa.DataType) -> None:
    if merge_functions.find(name) is None:
        raise BadInput(f"no merge is called {name!r}: use sum, min, max, count, append or give a function")
    problem = merge_functions.check_type(name, type_)
    if problem:
        raise SchemaMismatch(problem)
