"""Graceful interrupts: the current step is finished, then the command ends."""

import os
import select
import signal
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Inside this context, the first SIGINT or SIGTERM only sets ``requested``; the next one has its usual effect.

    Requires: the main thread. A pipe wakes the wait, because a lock taken in a signal handler could wait for itself.
    """

    def __init__(self) -> None:
        self._requested = False

    @property
    def requested(self) -> bool:
        return self._requested

    def wait_s(self, seconds: float) -> bool:
        """Whether an interrupt came, at the latest after ``seconds``."""
        if not self._requested:
            select.select([self._read], [], [], seconds)
        return self._requested

    def __enter__(self) -> "Interrupt":
        self._read, self._write = os.pipe()
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._requested = True
        self._restore()
        os.write(self._write, b"!")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
