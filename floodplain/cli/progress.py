"""Progress of long commands, on standard error: a bar on a terminal, otherwise a line every few seconds."""

from types import TracebackType

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from floodplain.clock import Clock

LINE_EVERY_S = 5.0


class RunProgress:
    """Called after each run or read with the number of runs done, their total (0 while unknown), and the bytes read so far."""

    def __init__(self, what: str, clock: Clock, console: Console | None = None) -> None:
        self._what = what
        self._clock = clock
        self._console = console or Console(stderr=True)
        self._printed_at_s = clock.monotonic_s()
        self._bar: Progress | None = None
        if self._console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(what, total=None)

    def __call__(self, done: int, total: int, size_bytes: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, description=f"{self._what} {decimal(size_bytes)}")
        elif self._clock.monotonic_s() - self._printed_at_s >= LINE_EVERY_S:
            self._printed_at_s = self._clock.monotonic_s()
            runs = f"{done} of {total} runs, " if total else ""
            self._console.print(f"{self._what}: {runs}{decimal(size_bytes)}", soft_wrap=True, highlight=False)

    def __enter__(self) -> "RunProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
