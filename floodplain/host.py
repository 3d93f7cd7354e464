"""Process identity: which process on which machine this is, and whether another one on the same machine has ended."""

import os
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED = {"Z", "X", "x"}
"""States of a task that runs no more: a process whose parent has not looked yet, and one that is being cleared away."""


class Process(msgspec.Struct, frozen=True):
    """The identity of a process, unique over reboots and reused process numbers where the machine allows it."""

    host: str
    pid: int
    space: str = ""
    """The boot of the machine and the namespaces in which ``pid`` and ``started`` mean something. Empty: not known."""
    started: int = 0
    """In ticks since the boot: a process that got the same number later has another."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Process:
    """The calling process. ``space`` is empty where identity is not certain (no Linux, or ``/proc`` of another namespace)."""
    pid, host = os.getpid(), socket.gethostname()
    stat = _stat(pid)
    return Process(host, pid) if stat is None else Process(host, pid, _space(), stat[1])


def is_gone(process: Process) -> bool:
    """Whether that process has provably ended: it ran on this machine since the last boot, in namespaces that are ours, and its
    number is free, or another's by now. False also where that cannot be told.

    A number of a namespace may be given again once all its processes have ended. So of a process that lives, equal namespaces
    prove that its number means the same here.
    """
    if not process.space or (process.host, process.space) != (socket.gethostname(), _space()):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and another user's
    stat = _stat(process.pid)
    if stat is None:
        return False
    state, started = stat
    return started != process.started or (state in _ENDED and _all_ended(process.pid))


def _space() -> str:
    """Empty unless ``/proc`` is that of our own namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 — the text is wanted, not a path
            return ""
        namespaces = [os.readlink("/proc/self/ns/pid")]  # noqa: PTH115
        with suppress(OSError):  # older kernels have one time for all
            namespaces.append(os.readlink("/proc/self/ns/time"))  # noqa: PTH115
        return " ".join([_BOOT.read_text().strip(), *namespaces])
    except OSError:
        return ""


def _stat(pid: int, task: str = "") -> tuple[str, int] | None:
    """State and start of a process, or of one of its threads."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}{task}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    return None


def _all_ended(pid: int) -> bool:
    """Threads may outlive the one that the process began with."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return False
    threads = [_stat(pid, f"/task/{task}") for task in tasks]
    return all(one is not None and one[0] in _ENDED for one in threads)
