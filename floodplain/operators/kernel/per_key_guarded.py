"""Calls a ``KeyedProcess`` with ``on_error="dead_letter"``: a failed call is rolled back, and its row becomes a dead letter."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from floodplain.operators.kernel.context import Context
from floodplain.operators.kernel.dead_letters import DeadLetters
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.per_key import PerKeyCaller
from floodplain.operators.kernel.row_cursor import Rows, failed_at


class GuardedPerKeyCaller(PerKeyCaller):
    """Repeats a failed call without the row on which it failed."""

    def __init__(
        self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context, letters: DeadLetters
    ) -> None:
        super().__init__(operator, grouped, handles, context)
        self._letters = letters
        self._columns = grouped.input.column_names

    def _rows(self, keys: list[Any]) -> None:
        rows, starts, newest = self._input()
        for number in range(len(starts) - 1):
            self._point(number, newest[number])
            self._call(number, keys[number], rows[starts[number] : starts[number + 1]])
            self.emitted.ends.append(len(self.emitted.rows))

    def _call(self, number: int, key: Any, rows: list[Any]) -> None:
        """Calls until it succeeds or no rows remain. If the failed row is not known, the next call checks each output row when
        it is emitted; if it is still not known, all rows of the key become dead letters."""
        check_each = False
        while rows:
            remaining = Rows(rows)
            error = self._try(partial(self._process.process, key, remaining, self._context), check_each)
            if error is None:
                return
            at = failed_at(remaining)
            if at is None and not check_each:
                check_each = True
                continue
            for row in rows if at is None else [rows[at]]:
                self._letters.add(number, error, row=dict(zip(self._columns, row, strict=True)))
            rows = [] if at is None else rows[:at] + rows[at + 1 :]

    def _timer(self, key: Any, at_ms: int) -> None:
        error = self._try(partial(self._process.on_timer, key, at_ms, self._context), check_each=False)
        if error is not None:
            self._letters.add(self._timers[0].i, error, timer_ms=at_ms)

    def _try(self, call: Callable[[], Iterable[Any] | None], check_each: bool) -> Exception | None:
        """Calls, and keeps output and state if both are valid; else rolls back and returns the error."""
        marks = [handle.mark() for handle in self._handles]
        emitted = self._context.sides.mark()
        made: Iterable[Any] | None = None
        try:
            made = call()
            out = self._drawn(made, check_each) if made is not None else []
            self._check(out)
        except Exception as error:
            with suppress(Exception):
                getattr(made, "close", _nothing)()
            for handle, mark in zip(self._handles, marks, strict=True):
                handle.rollback(mark)
            self._context.sides.rollback(emitted)
            if not is_users_fault(error):
                raise
            return error
        self.emitted.rows += out
        return None

    def _drawn(self, made: Iterable[Any], check_each: bool) -> list[Any]:
        out = []
        for row in made:
            if check_each:
                self._check([row])
            out.append(row)
        return out

    def _check(self, out: list[Any]) -> None:
        self.emitted.target.check(out)
        for handle in self._handles:
            handle.check()


def _nothing() -> None:
    """Closes a returned list: only generators need it."""
