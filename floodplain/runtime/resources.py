"""Keeps what ``open`` of a process function returned, for as long as the worker process lives.

Each task has a fresh copy of the operator, so the resource is kept here and passed to each task. There is one per store and
operator. When the query starts again (with a newer lease), the resource of the earlier start is closed.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from floodplain.errors import UserError, short
from floodplain.operators.kernel.context import OpenContext
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.process import Process


@dataclass(frozen=True, slots=True)
class _Opened:
    token: int
    since: int
    process: Process
    """A copy from before any task, so that it refers to no state."""
    resource: Any


class Resources:
    """The resources of one process. A forked process owns none of its parent's. They are closed at the latest when this object
    or its process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[tuple[str, str], _Opened] = {}
        self._pid = os.getpid()
        self._last = finalize(self, _close, self._held, self._pid)

    def of(self, operator: KeyedOperator, store: str, token: int) -> Any:
        """What ``open`` returned, called now if this process has not done so since the query started (``token``) or its code
        was updated; None without one. Raises ``UserError`` if it fails: the next task tries again."""
        if not opens(operator.process):
            return None
        with self._lock:
            if self._pid != os.getpid():
                self._held, self._pid = {}, os.getpid()
                self._last = finalize(self, _close, self._held, self._pid)
            opened = self._held.get((store, operator.name))
            if opened is None or (opened.token, opened.since) != (token, operator.since):
                _close(self._held, self._pid, [(store, operator.name)])
                opened = _Opened(token, operator.since, copy(operator.process), _opened(operator))
                self._held[store, operator.name] = opened
            return opened.resource

    def close(self) -> None:
        with self._lock:
            _close(self._held, self._pid)


def _close(held: dict[tuple[str, str], _Opened], pid: int, keys: Iterable[tuple[str, str]] | None = None) -> None:
    """Logs failures instead of raising them."""
    for key in list(held) if keys is None else keys:
        opened = held.pop(key, None)
        if opened is None or pid != os.getpid() or not _defines(opened.process, "close"):
            continue
        try:
            opened.process.close(opened.resource)
        except Exception:
            _log.exception("operator %s: close failed, and what open returned is given up", key[1])


HERE = Resources()
"""Those of a process that Spark runs tasks in."""
_hooked: set[int] = set()
_ENDING = (signal.SIGHUP, signal.SIGTERM)
_log = logging.getLogger(__name__)


def opens(process: Process) -> bool:
    return _defines(process, "open")


def _defines(process: Process, name: str) -> bool:
    """Whether its class has such a method; a state may have the name as well."""
    method = getattr(type(process), name)
    return method is not getattr(Process, name) and callable(method)


def _opened(operator: KeyedOperator) -> Any:
    process: Any = operator.process
    before = dict(_attributes(process))
    try:
        resource = process.open(OpenContext(operator.name))
    except Exception as error:
        message = short(str(error), 1000, quoted=False)
        raise UserError(f"{type(error).__name__} in operator {operator.name}, open: {message}") from error
    lost = [name for name, value in _attributes(process) if name not in before or before[name] is not value]
    if lost:
        raise UserError(
            f"operator {operator.name}: open set self.{lost[0]}, which the next task does not have: it gets a fresh copy; "
            "return what is to stay, and use it as ctx.resource"
        )
    return resource


def _attributes(process: Process) -> Iterable[tuple[str, Any]]:
    return list(getattr(process, "__dict__", {}).items())


def close_when_spark_ends() -> None:
    """Closes resources when a worker of Spark ends: by ``os._exit`` or a signal, neither of which runs ``atexit``. To be called
    in the worker; a second call does nothing."""
    if os.getpid() in _hooked or threading.current_thread() is not threading.main_thread():
        return
    _hooked.add(os.getpid())
    leave: Any = os._exit

    def closing(code: int) -> None:
        try:
            with suppress(ValueError):  # from a thread that signals are not for
                for number in _ENDING:  # several come at once when Spark stops
                    signal.signal(number, signal.SIG_IGN)
            HERE.close()
        finally:
            leave(code)

    os._exit = closing  # type: ignore[assignment]
    for number in _ENDING:
        signal.signal(number, lambda number, _frame: closing(128 + number))
