"""Process functions on Arrow tables, called once for all keys of a task."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from floodplain.errors import UserError
from floodplain.operators.context import Context
from floodplain.operators.grouping import Grouped
from floodplain.operators.operator import KeyedOperator
from floodplain.operators.outputs import Target


class Batch:
    """All keys of a task at once."""

    def __init__(self, grouped: Grouped, handles: Mapping[str, Any]) -> None:
        self._grouped = grouped
        self.keys = grouped.space.keys
        self.starts = grouped.starts
        self._handles = handles

    @property
    def rows(self) -> pa.Table:
        """All columns of the rows, sorted by key."""
        return self._grouped.rows

    def column(self, name: str) -> pa.Array:
        """One column of the rows, sorted by key. Cheaper than ``rows`` where not all of them are needed."""
        return self._grouped.column(name)

    @property
    def key_of_row(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def rows_per_key(self) -> np.ndarray:
        """How many rows each key has in this epoch; 0 for keys that are here for a timer only."""
        return np.append(np.diff(self.starts), np.zeros(len(self.keys) - len(self.starts) + 1, np.int64))

    def state(self, name: str) -> pa.Array:
        """The values of a state, one per key; its default where there is none."""
        return self._handles[name].column()

    def set(self, name: str, values: pa.Array) -> None:
        """Replace the values of a state for all keys; null clears."""
        self._handles[name].replace(values)


class BatchCall:
    """Calls a ``KeyedBatchProcess`` once."""

    def __init__(self, operator: KeyedOperator, grouped: Grouped, handles: Mapping[str, Any], context: Context) -> None:
        self._operator, self._context = operator, context
        self._process: Any = operator.process
        self._batch = Batch(grouped, handles)

    def run(self) -> pa.Table:
        try:
            made = self._process.process(self._batch, self._context)
        except Exception as error:
            raise UserError.of(self._operator.name, self._context.epoch, None, None, error) from error
        target = Target(self._operator.name, self._operator.output)
        return target.table([]) if made is None else target.fit(made)
