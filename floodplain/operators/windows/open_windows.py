"""Open windows of many keys as columns, and their layout in the state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodplain.operators.aggregates.aggregation import Aggregation, Partials
from floodplain.operators.kernel.pane_index import Pairs
from floodplain.operators.kernel.segments import filled
from floodplain.structs import field_at, fields_of

UNFIRED = "_unfired"
SHOWN = "_shown"


@dataclass
class OpenWindows:
    """One row per open window or pane, by key and start."""

    key_of: np.ndarray
    start: np.ndarray
    end: np.ndarray
    partials: Partials
    """Null where there are none yet."""
    stored: np.ndarray
    """Whether it is in the state."""
    added: np.ndarray
    """The number of rows of this epoch."""
    unfired: np.ndarray
    """The number of rows since the last firing."""
    emitted: pa.Array | None = None
    """The last result, null before the first; only with retractions, which need it."""

    bounds_us: tuple[np.ndarray, np.ndarray] | None = None
    """Start and end, where these are not whole milliseconds."""

    @property
    def pairs(self) -> Pairs:
        return self.key_of, self.start


class WindowLayout:
    """A window in the state: a struct of its partials and of what its trigger needs."""

    def __init__(self, aggregation: Aggregation, *, numbers: Sequence[str] = (), emitted: pa.DataType | None = None) -> None:
        """``numbers``: further integer columns. ``emitted``: the type of the last result, if it is stored."""
        self._aggregation = aggregation
        self._numbers = list(numbers)
        extra = [pa.field(name, pa.int64()) for name in self._numbers]
        extra += [pa.field(SHOWN, emitted)] if emitted is not None else []
        self.struct = pa.struct([*aggregation.partial, *extra])
        self._width = len(aggregation.partial)

    def packed(
        self, partials: Partials, numbers: Mapping[str, np.ndarray], emitted: pa.Array | None, rows: np.ndarray
    ) -> pa.Array:
        """These windows as values of the state."""
        taken = pa.array(rows)
        columns = [column.take(taken) for column in partials]
        columns += [pa.array(numbers[name][rows]) for name in self._numbers]
        columns += [] if emitted is None else [emitted.take(taken)]
        return pa.StructArray.from_arrays(columns, fields=list(self.struct))

    def partials(self, entries: pa.Array) -> Partials:
        return fields_of(entries)[: self._width]

    def number(self, entries: pa.Array, name: str) -> np.ndarray | None:
        """One of the further columns, 0 for null; None if it is not stored."""
        if name not in self._numbers:
            return None
        return filled(field_at(entries, self._width + self._numbers.index(name)), 0)

    def emitted(self, entries: pa.Array) -> pa.Array | None:
        fields = self.struct
        last = fields.num_fields - 1
        return field_at(entries, last) if fields.field(last).name == SHOWN else None
