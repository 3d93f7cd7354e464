"""A disk that is full at any one write, for all below some folders. Deterministic: each call that takes room has a number."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "writev", "fsync", "link", "rename", "replace", "mkdir", "posix_fallocate")


class FullDisk:
    """From call ``first`` on (from 0) all calls that take room fail, until there is ``room`` again; ``once``: only that one.

    A write that fails has written half of what it was given, as a disk does that runs full.
    """

    def __init__(self, *roots: Path, first: int | None = None, once: bool = False, number: int = errno.ENOSPC) -> None:
        self.roots = [os.fspath(root) for root in roots]
        self.first, self.once, self.number = first, once, number
        self.calls: list[str] = []
        self.failed = 0
        self.room = False
        self._real: dict[str, Callable[..., Any]] = {}

    @contextmanager
    def mounted(self) -> Iterator["FullDisk"]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                self._real[name] = getattr(os, name)
                patch.setattr(os, name, self._faulty(name))
            yield self

    def _faulty(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._takes_room(name, args):
                return real(*args, **kwargs)
            self.calls.append(f"{name} {self._path(args)}")
            if self._fails(len(self.calls) - 1):
                self.failed += 1
                if name == "writev":
                    data = b"".join(args[1])
                    os.write(args[0], data[: len(data) // 2])
                raise OSError(self.number, os.strerror(self.number), self._path(args))
            return None if name == "fsync" else real(*args, **kwargs)

        return call

    def _fails(self, index: int) -> bool:
        if self.first is None or self.room:
            return False
        return index == self.first if self.once else index >= self.first

    def _takes_room(self, name: str, args: tuple[Any, ...]) -> bool:
        if name == "open" and not (len(args) > 1 and args[1] & os.O_CREAT):
            return False
        path = self._path(args)
        return any(path == root or path.startswith(root + os.sep) for root in self.roots)

    def _path(self, args: tuple[Any, ...]) -> str:
        return os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.fspath(args[0])
