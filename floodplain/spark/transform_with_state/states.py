"""PySpark's ``ValueState``, ``ListState`` and ``MapState`` over the handles of the kernel.

They look and behave like Spark's own, down to the words of the errors; only no call leaves the process.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from floodplain.spark.transform_with_state.errors import CALLS, empty_list
from floodplain.spark.transform_with_state.state_count import newly_expired
from floodplain.spark.transform_with_state.types import Codec
from floodplain.state.handles import ValueHandle
from floodplain.state.lists import ListHandle
from floodplain.state.maps import MapHandle

_MISSING: Final = object()


class Unusable:
    """The handle of a state that cannot be used now: any call on it is an error that begins as Spark's does."""

    def __init__(self, kind: str, why: Callable[[str], str]) -> None:
        """``why`` makes the end of the message from the name of the call."""
        self._calls = CALLS[kind]
        self._why = why

    def __getattr__(self, method: str) -> Any:
        call = self._calls.get(method)
        if call is None:
            raise AttributeError(method)
        raise PySparkRuntimeError(f"{call.failure}: {self._why(call.name)}")


class Deleted(Unusable):
    """The handle of a state that ``init`` has deleted. As in Spark, to go through its elements or entries is no error: it has
    none."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, lambda _: f"{kind.capitalize()} state {name} is not initialized.")
        self._iterated = {"list": ("get",), "map": ("items", "keys", "values")}.get(kind, ())

    def __getattr__(self, method: str) -> Any:
        return tuple if method in self._iterated else super().__getattr__(method)


class Counted:
    """Counts the rows of state that calls write and remove, as Spark does.

    Spark looks at a row with a time to live before it writes: to write what is there, or remove what is not, does not count. What
    has expired is there until Spark evicts it at the end of the batch: to clear it counts as a removal, and no longer as an
    expiry.
    """

    updated = 0
    removed = 0
    not_evicted = 0
    """Entries that have expired since the last epoch and are gone, and that Spark does not evict: a call was first."""
    timed = False
    """Whether the state has a time to live."""
    handle: Any

    def __init__(self) -> None:
        self._cleared: dict[int, Any] = {}
        """The keys that a call has cleared, and what this epoch had changed there before."""

    def settle(self) -> None:
        """Counts the entries that calls have cleared although they had expired. Requires: there are no more calls."""
        if not self._cleared:
            return
        for number, subkey in newly_expired(self.handle.cursor, self.handle.place, self._cleared):
            self.handle.i = number
            self._settle(self._cleared[number], subkey)

    def _settle(self, changed: Any, subkey: Any) -> None:
        raise NotImplementedError


class LiveValue(Counted, ValueState):
    """One value of the current key."""

    def __init__(self, codec: Codec, handle: "ValueHandle | Unusable") -> None:
        super().__init__()
        self._codec = codec
        self.handle = handle
        self._updated: set[int] = set()

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def get(self) -> tuple[Any, ...] | None:
        kept = self.handle.get()
        if kept is None and not self.handle.exists():
            return None
        return self._codec.decode(kept)

    def update(self, newValue: Any) -> None:
        value = self._codec.encode(newValue, "Error updating value state")
        write = self.handle.set
        self.updated += not (self.timed and self.handle.has_set(value))
        if self.timed:
            self._updated.add(self.handle.i)
        write(value)

    def clear(self) -> None:
        clear = self.handle.clear
        self.removed += not self.timed or self.handle.exists()
        if self.timed:
            self._cleared.setdefault(self.handle.i, self.handle.i in self._updated)
        clear()

    def _settle(self, changed: bool, subkey: None) -> None:  # noqa: ARG002
        self.removed += not changed
        self.not_evicted += not self.handle.exists()


class LiveList(Counted, ListState):
    """The elements of the current key."""

    def __init__(self, name: str, codec: Codec, handle: "ListHandle | Unusable") -> None:
        super().__init__()
        self._name = name
        self._codec = codec
        self.handle = handle

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """It reads when the first element is requested. Later writes do not change what it yields."""
        kept = self.handle.get()
        yield from map(self._codec.decode, kept)

    def put(self, newState: Any) -> None:
        values = self._encoded(newState)
        write = self.handle.set
        if self.timed:
            self._cleared.setdefault(self.handle.i, True)
        write(values)
        self.updated += len(values)

    def appendValue(self, newState: Any) -> None:
        self.handle.append(self._codec.encode(newState, "Error updating value state"))
        self.updated += 1

    def appendList(self, newState: Any) -> None:
        values = self._encoded(newState)
        self.handle.extend(values)
        self.updated += len(values)

    def clear(self) -> None:
        clear = self.handle.clear
        self.removed += len(self.handle)
        if self.timed:
            self._cleared.setdefault(self.handle.i, False)
        clear()

    def _settle(self, changed: bool, subkey: int) -> None:  # noqa: ARG002
        self.removed += not changed
        self.not_evicted += 1

    def _encoded(self, elements: Any) -> list[Any]:
        values = [self._codec.encode(value, "Error updating value state") for value in elements]
        if not values:
            raise PySparkRuntimeError(f"Error updating value state: {empty_list(self._name)}")
        return values


class LiveMap(Counted, MapState):
    """The entries of the current key."""

    def __init__(self, keys: Codec, values: Codec, handle: "MapHandle | Unusable") -> None:
        super().__init__()
        self._keys = keys
        self._values = values
        self.handle = handle

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def getValue(self, key: Any) -> Any:
        kept = self.handle.get(self._keys.encode(key, "Error getting value"), _MISSING)
        return None if kept is _MISSING else self._values.row(kept)

    def containsKey(self, key: Any) -> bool:
        return bool(self.handle.contains(self._keys.encode(key, "Error checking if map state contains key")))

    def updateValue(self, key: Any, value: Any) -> None:
        failure = "Error updating map state value"
        entry = self._keys.encode(key, failure), self._values.encode(value, failure)
        put = self.handle.put
        self.updated += not (self.timed and self.handle.has_put(*entry))
        put(*entry)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for key, value in self.handle.items():
            yield self._keys.decode(key), self._values.decode(value)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        yield from map(self._keys.decode, self.handle.keys())

    def values(self) -> Iterator[tuple[Any, ...]]:
        yield from map(self._values.decode, self.handle.values())

    def removeKey(self, key: Any) -> None:
        self.handle.remove(self._keys.encode(key, "Error removing key from map state"))
        self.removed += 1

    def clear(self) -> None:
        clear = self.handle.clear
        self.removed += len(self.handle)
        if self.timed:
            self._cleared.setdefault(self.handle.i, self.handle.changed())
        clear()

    def _settle(self, changed: Mapping[Any, bool], subkey: Any) -> None:
        put = changed.get(self.handle.name_of(subkey))
        self.removed += put is None
        # Spark forgets to take what is removed by its key off the list of what it has to evict.
        self.not_evicted += put is not False and not self.handle.contains(subkey)
