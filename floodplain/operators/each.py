"""Process functions on Python values, called key by key."""

from collections import namedtuple
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import UserError
from floodplain.eventtime.times import as_ms
from floodplain.operators.context import Context
from floodplain.operators.grouping import Grouped
from floodplain.operators.operator import EVENT_TIMERS, PROCESSING_TIMERS, KeyedOperator
from floodplain.operators.outputs import Target


class EachKey:
    """Calls a ``KeyedProcess`` key by key."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        self._operator = operator
        self._process: Any = operator.process
        self._grouped = grouped
        self._handles = list(handles.values())
        self._timers = [handles[EVENT_TIMERS], handles[PROCESSING_TIMERS]]
        self._context = context
        self._key = _tuple_type("Key", list(operator.keys))
        for name, handle in handles.items():
            setattr(self._process, name, handle)
        self._out: list[Any] = []

    def run(self) -> pa.Table:
        keys = list(map(self._key._make, zip(*(column.to_pylist() for column in self._grouped.space.keys.columns), strict=True)))
        self._rows(keys)
        for timers in self._timers:
            for number, at_ms in timers.fire():
                self._point(number)
                self._context.event_time = at_ms
                self._take(keys[number], lambda key, at_ms=at_ms: self._process.on_timer(key, at_ms, self._context), None)
        return Target(self._operator.name, self._operator.output).table(self._out)

    def _rows(self, keys: list[Any]) -> None:
        table = self._grouped.rows
        row = _tuple_type("Row", table.column_names)
        rows = list(map(row._make, zip(*(column.to_pylist() for column in table.columns), strict=True)))
        newest = self._newest()
        starts = self._grouped.starts.tolist()
        process, context, handles = self._process.process, self._context, self._handles
        extend = self._out.extend
        for number in range(len(starts) - 1):
            for handle in handles:
                handle.i = number
            given = rows[starts[number] : starts[number + 1]]
            context.event_time = newest[number]
            try:
                made = process(keys[number], given, context)
                if made is not None:
                    extend(made)
            except Exception as error:
                raise UserError.of(self._operator.name, context.epoch, keys[number], given[:1], error) from error

    def _newest(self) -> list[int]:
        count = len(self._grouped.starts) - 1
        if self._operator.event_time is None or not count:
            return [self._context.watermark] * count
        event_ms = as_ms(self._grouped.rows.column(self._operator.event_time))
        values = pc.fill_null(event_ms, self._context.watermark).to_numpy()
        return np.maximum.reduceat(values, self._grouped.starts[:-1]).tolist()

    def _point(self, number: int) -> None:
        for handle in self._handles:
            handle.i = number

    def _take(self, key: Any, call: Any, row: Any) -> None:
        try:
            made: Iterable[Any] | None = call(key)
            if made is not None:
                self._out.extend(made)
        except Exception as error:
            raise UserError.of(self._operator.name, self._context.epoch, key, row, error) from error


def _tuple_type(name: str, fields: list[str]) -> Any:
    """A named tuple for columns that are known only now."""
    return namedtuple(name, fields, rename=True)
