"""Process functions that may fail: what a failed call did is undone, and what it failed on becomes a dead letter."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from floodplain.operators.kernel.context import Context
from floodplain.operators.kernel.dead_letters import DeadLetters
from floodplain.operators.kernel.error_attribution import is_users_fault
from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.per_key import EachKey
from floodplain.operators.kernel.row_cursor import Rows, failed_at


class GuardedKeys(EachKey):
    """Calls a ``KeyedProcess`` key by key; a call that fails is repeated without the row it failed on."""

    def __init__(
        self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context, letters: DeadLetters
    ) -> None:
        super().__init__(operator, grouped, handles, context)
        self._letters = letters
        self._columns = grouped.given.column_names

    def _rows(self, keys: list[Any]) -> None:
        rows, starts, newest = self._given()
        for number in range(len(starts) - 1):
            self._point(number, newest[number])
            self._call(number, keys[number], rows[starts[number] : starts[number + 1]])
            self._ends.append(len(self._out))

    def _call(self, number: int, key: Any, rows: list[Any]) -> None:
        """Until it succeeds or no rows are left. If it cannot be told which row failed, each output row is looked at as it comes;
        if that does not tell either, all rows of the key are dead letters."""
        closely = False
        while rows:
            given = Rows(rows)
            error = self._try(partial(self._process.process, key, given, self._context), closely)
            if error is None:
                return
            at = failed_at(given)
            if at is None and not closely:
                closely = True
                continue
            for row in rows if at is None else [rows[at]]:
                self._letters.add(number, error, row=dict(zip(self._columns, row, strict=True)))
            rows = [] if at is None else rows[:at] + rows[at + 1 :]

    def _timer(self, key: Any, at_ms: int) -> None:
        error = self._try(partial(self._process.on_timer, key, at_ms, self._context), closely=False)
        if error is not None:
            self._letters.add(self._timers[0].i, error, timer_ms=at_ms)

    def _try(self, call: Callable[[], Iterable[Any] | None], closely: bool) -> Exception | None:
        """Call, and take what comes out if all of it and all state fits; else undo and return the error."""
        marks = [handle.mark() for handle in self._handles]
        emitted = self._context.sides.mark()
        made: Iterable[Any] | None = None
        try:
            made = call()
            out = self._drawn(made, closely) if made is not None else []
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
        self._out += out
        return None

    def _drawn(self, made: Iterable[Any], closely: bool) -> list[Any]:
        out = []
        for row in made:
            if closely:
                self._check([row])
            out.append(row)
        return out

    def _check(self, out: list[Any]) -> None:
        self._target.check(out)
        for handle in self._handles:
            handle.check()


def _nothing() -> None:
    """What a list that was returned needs to be closed."""
