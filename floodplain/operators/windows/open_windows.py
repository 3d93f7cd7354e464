"""Windows of many keys at once, with what is kept of each."""

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
    """One row per window, by key and start."""

    key_of: np.ndarray
    start: np.ndarray
    end: np.ndarray
    partials: Partials
    """Null where nothing is kept."""
    stored: np.ndarray
    """Whether the state has it."""
    added: np.ndarray
    """Rows of this epoch."""
    unfired: np.ndarray
    """Rows since the last result."""
    shown: pa.Array | None = None
    """The last result, null where there was none; if it is to be taken back when there is another."""

    bounds_us: tuple[np.ndarray, np.ndarray] | None = None
    """When it starts and ends, where that is not at whole milliseconds."""

    @property
    def pairs(self) -> Pairs:
        return self.key_of, self.start


class WindowLayout:
    """How a window stands in the state: a struct of its partials and of what firings must know."""

    def __init__(self, aggregation: Aggregation, *, numbers: Sequence[str] = (), shown: pa.DataType | None = None) -> None:
        """``numbers``: further numbers to keep. ``shown``: the type of the last result, if it is kept."""
        self._aggregation = aggregation
        self._numbers = list(numbers)
        extra = [pa.field(name, pa.int64()) for name in self._numbers]
        extra += [pa.field(SHOWN, shown)] if shown is not None else []
        self.struct = pa.struct([*aggregation.partial, *extra])
        self._width = len(aggregation.partial)

    def packed(self, partials: Partials, numbers: Mapping[str, np.ndarray], shown: pa.Array | None, rows: np.ndarray) -> pa.Array:
        """These windows as the state has them."""
        taken = pa.array(rows)
        columns = [column.take(taken) for column in partials]
        columns += [pa.array(numbers[name][rows]) for name in self._numbers]
        columns += [] if shown is None else [shown.take(taken)]
        return pa.StructArray.from_arrays(columns, fields=list(self.struct))

    def partials(self, found: pa.Array) -> Partials:
        return fields_of(found)[: self._width]

    def number(self, found: pa.Array, name: str) -> np.ndarray | None:
        """One of the further numbers, 0 where there is none; None if it is not kept."""
        if name not in self._numbers:
            return None
        return filled(field_at(found, self._width + self._numbers.index(name)), 0)

    def shown(self, found: pa.Array) -> pa.Array | None:
        fields = self.struct
        last = fields.num_fields - 1
        return field_at(found, last) if fields.field(last).name == SHOWN else None
