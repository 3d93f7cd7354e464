"""The contender dict: Python objects in memory. Updates are not durable; a checkpoint writes the whole state to a synced file."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from floodplain.bench.workloads.state_updates import Kind

NAME = "dict"


class Plain:
    """One kind of state in one dictionary, by user. Subclasses define how a batch changes it."""

    name = NAME

    def __init__(self, kind: Kind, home: Path) -> None:
        self.kind = kind
        self.state: dict[str, Any] = {}
        self._saved = home / f"dict-{kind.name}"

    def update(self, batch: pa.Table) -> None:
        raise NotImplementedError

    def total(self, values: Iterable[Any]) -> int:
        raise NotImplementedError

    def rows(self) -> pa.Table:
        raise NotImplementedError

    def checkpoint(self, batch: pa.Table) -> None:
        self.update(batch)
        save(self._saved, self.state)

    def point(self, keys: pa.Table) -> int:
        return sum(self.answer([key], self.state) for key in self.encoded(keys))

    def multi_get(self, keys: pa.Table) -> int:
        return self.answer(self.encoded(keys), self.state)

    def scan(self, number: int = 0) -> int:  # noqa: ARG002
        return self.total(self.state.values())

    def restore(self, keys: pa.Table) -> int:
        return self.answer(self.encoded(keys), load(self._saved))

    def encoded(self, keys: pa.Table) -> list[Any]:
        return keys.column("user").to_pylist()

    def answer(self, keys: Iterable[Any], state: dict[str, Any]) -> int:
        return self.total([state[key] for key in keys if key in state])

    def finish_compactions(self) -> None:
        """There are none."""

    def close(self) -> None:
        self.state = {}


def save(path: Path, state: dict[str, Any]) -> None:
    """Durable: the file's bytes and its name are on disk when this returns."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(msgspec.msgpack.encode(state))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> dict[str, Any]:
    return msgspec.msgpack.decode(path.read_bytes())


class PlainValue(Plain):
    def update(self, batch: pa.Table) -> None:
        state, zero = self.state, (0, 0.0)
        get = state.get
        for user, n, s in zip(*(batch.column(name).to_pylist() for name in ("user", "n", "s")), strict=True):
            old = get(user, zero)
            state[user] = (old[0] + n, old[1] + s)

    def total(self, values: Iterable[Any]) -> int:
        return sum([value[0] for value in values])

    def rows(self) -> pa.Table:
        pairs = list(self.state.values())
        return pa.table({"user": list(self.state), "n": [n for n, _ in pairs], "s": [s for _, s in pairs]})


class PlainList(Plain):
    def update(self, batch: pa.Table) -> None:
        state = self.state
        for user, items in zip(batch.column("user").to_pylist(), batch.column("items").to_pylist(), strict=True):
            if user in state:
                state[user] += items
            else:
                state[user] = items

    def total(self, values: Iterable[Any]) -> int:
        return sum([sum(items) for items in values])

    def rows(self) -> pa.Table:
        return pa.table({"user": list(self.state), "items": pa.array(self.state.values(), pa.list_(pa.int64()))})


class PlainMap(Plain):
    def update(self, batch: pa.Table) -> None:
        state = self.state
        for user, page, seen in zip(*(batch.column(name).to_pylist() for name in ("user", "page", "seen")), strict=True):
            if user in state:
                state[user][page] = seen
            else:
                state[user] = {page: seen}

    def encoded(self, keys: pa.Table) -> list[Any]:
        return list(zip(keys.column("user").to_pylist(), keys.column("page").to_pylist(), strict=True))

    def answer(self, keys: Iterable[Any], state: dict[str, Any]) -> int:
        return sum([entries[page] for user, page in keys if page in (entries := state.get(user, {}))])

    def total(self, values: Iterable[Any]) -> int:
        return sum([sum(entries.values()) for entries in values])

    def rows(self) -> pa.Table:
        rows = [(user, page, seen) for user, entries in self.state.items() for page, seen in entries.items()]
        return pa.table({name: [row[at] for row in rows] for at, name in enumerate(("user", "page", "seen"))})


class PlainNested(Plain):
    def update(self, batch: pa.Table) -> None:
        state = self.state
        columns = [batch.column(name).to_pylist() for name in ("user", "page", "at", "tags")]
        for user, page, at, tags in zip(*columns, strict=True):
            visits = state[user][0] if user in state else 0
            state[user] = (visits + 1, (page, at), tags)

    def total(self, values: Iterable[Any]) -> int:
        return sum([value[0] for value in values])

    def rows(self) -> pa.Table:
        rows = [{"visits": n, "last": {"page": last[0], "at": last[1]}, "tags": tags} for n, last, tags in self.state.values()]
        return pa.table({"user": list(self.state), "profile": rows})


BY_KIND: dict[str, type[Plain]] = {"value": PlainValue, "list": PlainList, "map": PlainMap, "nested": PlainNested}
