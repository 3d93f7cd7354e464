"""Storage of open windows: all of a key in one value, or each as an entry of a map."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.operators.kernel.batch import KEY_OF, Batch
from floodplain.operators.kernel.pane_index import Pairs, union
from floodplain.operators.kernel.segments import at, filled, list_type, listed
from floodplain.operators.windows.open_windows import OpenWindows, WindowLayout
from floodplain.state.descriptors import Map, State, Value

WINDOWS = "windows"
"""The name of the state."""
START = "_start"


@dataclass(frozen=True)
class LoadedWindows:
    """Windows that may change: the requested ones, and others of the same keys."""

    pairs: Pairs
    places: list[np.ndarray]
    """For each source the position of its windows in ``pairs``."""
    entries: pa.Array
    """The stored value of each, null for a new window."""


class ListStorage:
    """All windows of a key are one value, read and written as one row. For few windows per key."""

    def __init__(self, layout: WindowLayout) -> None:
        self._layout = layout
        self._element = pa.struct([pa.field(START, pa.int64()), *layout.struct])

    def states(self) -> dict[str, State]:
        return {WINDOWS: Value(list_type(self._element), nullable=False, whole=True)}

    def known(self, batch: Batch) -> tuple[Pairs, pa.Array]:
        """All windows of the batch's keys."""
        lists = batch.state(WINDOWS)
        sizes = filled(pc.list_value_length(lists), 0)
        start, *others = pc.list_flatten(lists).flatten()
        values = pa.StructArray.from_arrays(others, fields=list(self._layout.struct))
        return (np.repeat(np.arange(len(lists)), sizes), start.to_numpy(zero_copy_only=False)), values

    def load(self, batch: Batch, sources: Sequence[Pairs], *, everything: bool) -> LoadedWindows:  # noqa: ARG002
        known, values = self.known(batch)
        pairs, (stored, *places) = union([known, *sources])
        row = np.full(len(pairs[0]), -1)
        row[stored] = np.arange(len(stored))
        return LoadedWindows(pairs, places, at(values, row))

    def save(
        self, batch: Batch, windows: OpenWindows, keep: np.ndarray, changed: np.ndarray, numbers: Mapping[str, np.ndarray]
    ) -> None:
        """Writes the windows to ``keep``. ``windows`` has all windows of its keys; ``changed``: those to write."""
        touched = np.zeros(len(batch.keys), bool)
        touched[windows.key_of[(changed & keep) | (windows.stored & ~keep)]] = True
        self.replace(batch, windows, keep & touched[windows.key_of], touched, numbers)

    def replace(
        self, batch: Batch, windows: OpenWindows, keep: np.ndarray, touched: np.ndarray, numbers: Mapping[str, np.ndarray]
    ) -> None:
        """Writes the whole list of each touched key."""
        keys, rows = np.flatnonzero(touched), np.flatnonzero(keep)
        if not len(keys):
            return
        values = self._layout.packed(windows.partials, numbers, windows.emitted, rows).flatten()
        elements = pa.StructArray.from_arrays([pa.array(windows.start[rows]), *values], fields=list(self._element))
        lists = listed(np.searchsorted(keys, windows.key_of[rows]), elements, len(keys))
        some = pc.greater(pc.list_value_length(lists), 0)
        batch.set(WINDOWS, pc.if_else(some, lists, pa.scalar(None, lists.type)), pa.array(keys))


class MapStorage:
    """Each window is a map entry: only those that change are read and written. For many windows per key."""

    def __init__(self, layout: WindowLayout) -> None:
        self._layout = layout

    def states(self) -> dict[str, State]:
        return {WINDOWS: Map("long", self._layout.struct, whole=True)}

    def load(self, batch: Batch, sources: Sequence[Pairs], *, everything: bool) -> LoadedWindows:
        """``everything``: all windows of the batch's keys, else the requested ones."""
        known: list[Pairs] = []
        if everything:
            entries = batch.entries(WINDOWS)
            known = [(entries.column(KEY_OF).to_numpy(), entries.column("key").to_numpy())]
        pairs, places = union([*sources, *known])
        return LoadedWindows(pairs, places[: len(sources)], batch.get(WINDOWS, pa.array(pairs[1]), pa.array(pairs[0])))

    def save(
        self, batch: Batch, windows: OpenWindows, keep: np.ndarray, changed: np.ndarray, numbers: Mapping[str, np.ndarray]
    ) -> None:
        rows, closed = np.flatnonzero(changed & keep), np.flatnonzero(windows.stored & ~keep)
        if len(rows):
            values = self._layout.packed(windows.partials, numbers, windows.emitted, rows)
            batch.put(WINDOWS, pa.array(windows.start[rows]), values, pa.array(windows.key_of[rows]))
        if len(closed):
            batch.remove(WINDOWS, pa.array(windows.start[closed]), pa.array(windows.key_of[closed]))
