"""Temporary folders: removed when closed, at process exit, or, after a kill, when another process makes one."""

import hashlib
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType

from floodplain.host import Process, is_gone, this_process

_NAME = re.compile(r"floodplain-[a-z]+-(?P<space>[0-9a-f]{8})-(?P<pid>\d+)-(?P<started>\d+)-\w+\Z")


class Scratch:
    """A folder of this process alone. Its name says whose it is: those of processes that have provably ended are removed when
    another is made beside them."""

    def __init__(self, what: str, folder: Path | None = None) -> None:
        """``what``: a word for the name. ``folder``: where, if not among the temporary files of the machine."""
        me, place = this_process(), folder or Path(tempfile.gettempdir())
        _sweep(place, me)
        prefix = f"floodplain-{what}-{_mark(me)}-{me.pid}-{me.started}-"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        self._gone = weakref.finalize(self, _remove, self.path, me.pid)

    def remove(self) -> None:
        """Now; may be called again."""
        self._gone()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def _mark(process: Process) -> str:
    return hashlib.sha256(f"{process.host} {process.space}".encode()).hexdigest()[:8]


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        shutil.rmtree(path, ignore_errors=True)


def _sweep(place: Path, me: Process) -> None:
    for path in place.glob("floodplain-*"):
        match = _NAME.match(path.name)
        if match is None or match["space"] != _mark(me):
            continue
        if is_gone(Process(me.host, int(match["pid"]), me.space, int(match["started"]))):
            shutil.rmtree(path, ignore_errors=True)
