"""What ``open`` of a process function made, kept for as long as the process that runs tasks lives.

An operator is a fresh copy in each task, so what it opens cannot stay with it: it stays here, and each task is given it. There is
one per store and operator; a later start of the query (a newer lease) closes what the one before opened in this process.
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
class _Held:
    token: int
    process: Process
    """A copy from before any task, so that no state is held by it."""
    resource: Any


class Resources:
    """What is open in a process. A process that was forked off owns nothing of it. What is left is closed when this object or its
    process goes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[tuple[str, str], _Held] = {}
        self._pid = os.getpid()
        self._last = finalize(self, _close, self._held, self._pid)

    def of(self, operator: KeyedOperator, store: str, token: int) -> Any:
        """What ``open`` returned, called now if this process has not done so since the query started (``token``); None without
        one. Raises ``UserError`` if it fails: the next task tries again."""
        if not opens(operator.process):
            return None
        with self._lock:
            if self._pid != os.getpid():
                self._held, self._pid = {}, os.getpid()
                self._last = finalize(self, _close, self._held, self._pid)
            found = self._held.get((store, operator.name))
            if found is None or found.token != token:
                _close(self._held, self._pid, [(store, operator.name)])
                found = _Held(token, copy(operator.process), _opened(operator))
                self._held[store, operator.name] = found
            return found.resource

    def close(self) -> None:
        with self._lock:
            _close(self._held, self._pid)


def _close(held: dict[tuple[str, str], _Held], pid: int, keys: Iterable[tuple[str, str]] | None = None) -> None:
    """What fails is logged: there is nothing left that it could stop."""
    for key in list(held) if keys is None else keys:
        found = held.pop(key, None)
        if found is None or pid != os.getpid() or not _defines(found.process, "close"):
            continue
        try:
            found.process.close(found.resource)
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
    found = getattr(type(process), name)
    return found is not getattr(Process, name) and callable(found)


def _opened(operator: KeyedOperator) -> Any:
    process: Any = operator.process
    before = dict(_attributes(process))
    try:
        resource = process.open(OpenContext(operator.name))
    except Exception as error:
        told = short(str(error), 1000, quoted=False)
        raise UserError(f"{type(error).__name__} in operator {operator.name}, open: {told}") from error
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
    """Spark's workers leave by ``os._exit`` or are told to by a signal, neither of which runs what ``atexit`` has: close what is
    open all the same. Called in such a worker; the second call does nothing."""
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
