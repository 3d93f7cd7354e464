"""PySpark's ``ValueState``, ``ListState`` and ``MapState`` over the handles of the kernel.

They look and behave like Spark's own, down to the words of the errors; only no call leaves the process.
"""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from floodplain.spark.transform_with_state.types import Codec
from floodplain.state.handles import ValueHandle
from floodplain.state.lists import ListHandle
from floodplain.state.maps import MapHandle

_MISSING: Final = object()


class NoKey:
    """The handle in ``init`` and ``close``, where there is no current key: any use of it is an error."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise PySparkRuntimeError(self._why)


class LiveValue(ValueState):
    """One value of the current key."""

    def __init__(self, codec: Codec, handle: "ValueHandle | NoKey") -> None:
        self._codec = codec
        self.handle: Any = handle

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def get(self) -> tuple[Any, ...] | None:
        kept = self.handle.get()
        if kept is None and not self.handle.exists():
            return None
        return self._codec.decode(kept)

    def update(self, newValue: Any) -> None:
        self.handle.set(self._codec.encode(newValue, "Error updating value state"))

    def clear(self) -> None:
        self.handle.clear()


class LiveList(ListState):
    """The elements of the current key."""

    def __init__(self, name: str, codec: Codec, handle: "ListHandle | NoKey") -> None:
        self._name = name
        self._codec = codec
        self.handle: Any = handle

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """It reads when the first element is requested. Later writes do not change what it yields."""
        kept = self.handle.get()
        yield from map(self._codec.decode, kept)

    def put(self, newState: Any) -> None:
        self.handle.set(self._encoded(newState))

    def appendValue(self, newState: Any) -> None:
        self.handle.append(self._codec.encode(newState, "Error updating value state"))

    def appendList(self, newState: Any) -> None:
        self.handle.extend(self._encoded(newState))

    def clear(self) -> None:
        self.handle.clear()

    def _encoded(self, elements: Any) -> list[Any]:
        values = [self._codec.encode(value, "Error updating value state") for value in elements]
        if not values:
            raise PySparkRuntimeError(
                "Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State "
                f"Store Cannot write empty list values to State Store for StateName {self._name}. SQLSTATE: 42601"
            )
        return values


class LiveMap(MapState):
    """The entries of the current key."""

    def __init__(self, keys: Codec, values: Codec, handle: "MapHandle | NoKey") -> None:
        self._keys = keys
        self._values = values
        self.handle: Any = handle

    def exists(self) -> bool:
        return bool(self.handle.exists())

    def getValue(self, key: Any) -> Any:
        kept = self.handle.get(self._keys.encode(key, "Error getting value"), _MISSING)
        return None if kept is _MISSING else self._values.row(kept)

    def containsKey(self, key: Any) -> bool:
        return bool(self.handle.contains(self._keys.encode(key, "Error checking if map state contains key")))

    def updateValue(self, key: Any, value: Any) -> None:
        failure = "Error updating map state value"
        self.handle.put(self._keys.encode(key, failure), self._values.encode(value, failure))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for key, value in self.handle.items():
            yield self._keys.decode(key), self._values.decode(value)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        yield from map(self._keys.decode, self.handle.keys())

    def values(self) -> Iterator[tuple[Any, ...]]:
        yield from map(self._values.decode, self.handle.values())

    def removeKey(self, key: Any) -> None:
        self.handle.remove(self._keys.encode(key, "Error removing key from map state"))

    def clear(self) -> None:
        self.handle.clear()
