"""The queries of this process that have not let go of their state yet, by state."""

import threading
from typing import Generic, TypeVar

Q = TypeVar("Q")


class ActiveQueries(Generic[Q]):
    """The query that runs on a state or still holds the lease on it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_store: dict[str, Q] = {}

    def add(self, store: str, query: Q) -> None:
        """``store``: the id of the store."""
        with self._lock:
            self._by_store[store] = query

    def remove(self, store: str, query: Q) -> None:
        """Does nothing if another query has taken over the state."""
        with self._lock:
            if self._by_store.get(store) is query:
                del self._by_store[store]

    def get(self, store: str) -> Q | None:
        with self._lock:
            return self._by_store.get(store)
