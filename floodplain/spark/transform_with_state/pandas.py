"""The pandas flavour: rows go in as an iterator of DataFrames and come out as DataFrames."""

from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from floodplain.operators.kernel.key_grouping import Grouped
from floodplain.spark.transform_with_state.chunks import Chunks
from floodplain.spark.transform_with_state.initial_state import INITIAL
from floodplain.spark.transform_with_state.rows import TIME_ZONE
from floodplain.store.rows.layout import one_array


class PandasFlavour:
    """The rows of a task as Spark's worker hands them out, and what the processor made of them."""

    def __init__(self, process: Any, grouped: Grouped) -> None:
        self._schema: pa.Schema = process.output
        self._shape = process.shape
        self._settings = process.settings
        self._zone = process.settings.get(TIME_ZONE, "UTC")
        there = _initial(grouped)
        ordinary = grouped.rows if there is None else grouped.rows.filter(pa.array(~there))
        ordinary = ordinary.select(self._shape.rows.names)
        states = None if there is None else _unpacked(one_array(grouped.rows.column(INITIAL)).filter(pa.array(there)))
        self._chunks = Chunks(self._settings, _as_sent(ordinary, states, self._shape.initial))
        self._sent_before = 0 if states is None else len(states)
        self._starts = _starts(grouped, None if there is None else ~there)
        self._keys = grouped.space.keys.rename_columns(list(self._shape.keys))
        self._frame, self._mixed = self._as_frame(ordinary)
        self._initial = None if states is None else self._initial_frames(states, _starts(grouped, there))
        self._out: list[pd.DataFrame] = []

    def groups(self) -> Iterator[tuple[tuple[Any, ...], Sequence[Iterator[pd.DataFrame]]]]:
        starts, before = self._starts, self._sent_before
        keys = self._as_frame(self._keys.slice(0, len(starts) - 1))[0].itertuples(index=False, name=None)
        for key, (low, high) in zip(keys, pairwise(starts), strict=True):
            yield key, (self._frames(self._frame, self._mixed, low, high, before),) if low < high else ()

    def initial(self) -> list[list[pd.DataFrame]] | None:
        return self._initial

    def _initial_frames(self, states: pa.Table, starts: list[int]) -> list[list[pd.DataFrame]]:
        """Converted apart from ordinary rows: a null among numbers would make them floats."""
        frame, mixed = self._as_frame(states)
        return [list(self._frames(frame, mixed, low, high, 0)) for low, high in pairwise(starts)]

    def first(self, number: int) -> tuple[Any, int]:
        """The first row of a key, and how many it has."""
        low, high = self._starts[number], self._starts[number + 1]
        return next(self._frame.iloc[low:high].itertuples(index=False)), high - low

    def take(self, made: Iterable[Any]) -> None:
        for frame in made:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the specified return "
                    "type is StructType."
                )
            self._out.append(frame.copy())

    def output(self) -> pa.Table:
        """Frames of one form are converted together: one by one that costs more than all the rest."""
        tables = [self._schema.empty_table()]
        for _, alike in groupby(self._out, key=lambda frame: (len(frame) > 0, tuple(frame.columns), tuple(frame.dtypes))):
            frames = list(alike)
            try:
                tables.append(self._converted(pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]))
            except Exception:
                if len(frames) == 1:
                    raise
                tables += map(self._converted, frames)
        return pa.concat_tables(tables)

    def _converted(self, frame: pd.DataFrame) -> pa.Table:
        batch = PandasToArrowConversion.convert(
            [frame],
            StructType([StructField("_0", self._shape.output)]),
            timezone=self._zone,
            safecheck=self._is_on("spark.sql.execution.pandas.convertToArrowArraySafely"),
            arrow_cast=True,
            assign_cols_by_name=self._is_on("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true"),
            int_to_decimal_coercion_enabled=self._is_on("spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"),
        )
        whole = batch.column(0)
        return pa.Table.from_arrays(whole.flatten(), names=[field.name for field in whole.type]).cast(self._schema)

    def _is_on(self, name: str, default: str = "false") -> bool:
        return self._settings.get(name, default).lower() == "true"

    def _frames(self, frame: pd.DataFrame, mixed: bool, low: int, high: int, before: int) -> Iterator[pd.DataFrame]:
        """The rows of a key. ``before``: how many rows Spark sends before those of ``frame``."""
        for start, end in self._chunks.cut(before + low, before + high):
            chunk = frame.iloc[start - before : end - before].reset_index(drop=True)
            yield chunk.infer_objects() if mixed else chunk

    def _as_frame(self, table: pa.Table) -> tuple[pd.DataFrame, bool]:
        """All rows at once, with names and types as Spark's worker, which goes by way of named tuples, ends up with.

        Also whether the types of a part may be others, because it may lack the nulls of the whole.
        """
        schema = to_arrow_schema(_schema_of(self._shape, table.column_names), timezone=self._zone)
        series = ArrowBatchTransformer.to_pandas(
            table.cast(schema).combine_chunks(),
            timezone=self._zone,
            prefer_int_ext_dtype=self._is_on("spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"),
        )
        rows = list(pd.concat(series, axis=1).itertuples(index=False, name=None))
        columns: Any = namedtuple("Row", table.column_names, rename=True)  # type: ignore[misc]
        mixed = any(not pa.types.is_string(kind) and not pa.types.is_primitive(kind) for kind in schema.types)
        return pd.DataFrame(rows, columns=list(columns._fields)), mixed or any(map(pa.types.is_boolean, schema.types))


def _initial(grouped: Grouped) -> np.ndarray | None:
    """For each row whether it stands for a row of the initial state; None if none does."""
    if INITIAL not in grouped.rows.column_names:
        return None
    return one_array(grouped.rows.column(INITIAL)).is_valid().to_numpy(zero_copy_only=False)


def _unpacked(states: pa.StructArray) -> pa.Table:
    return pa.Table.from_arrays(states.flatten(), schema=pa.schema(list(states.type)))


def _as_sent(rows: pa.Table, states: pa.Table | None, initial: StructType | None) -> list[pa.Table]:
    """As Spark sends them: where there is an initial state, each row has room for a row of it, too, and the other way round."""
    if initial is None:
        return [rows]
    ordinary, kept = (pa.struct(list(schema)) for schema in (rows.schema, to_arrow_schema(initial, timezone="UTC")))
    parts = [] if states is None else [_pair(pa.nulls(len(states), ordinary), _packed(states))]
    return [*parts, _pair(_packed(rows), pa.nulls(len(rows), kept))]


def _packed(table: pa.Table) -> pa.StructArray:
    return pa.StructArray.from_arrays([one_array(column) for column in table.columns], fields=list(table.schema))


def _pair(rows: pa.Array, states: pa.Array) -> pa.Table:
    return pa.Table.from_arrays([rows, states], names=["inputData", "initState"])


def _starts(grouped: Grouped, wanted: np.ndarray | None) -> list[int]:
    """Where the rows of each key start among those that are wanted."""
    if wanted is None:
        return grouped.starts.tolist()
    return np.append(0, np.cumsum(wanted))[grouped.starts].tolist()


def _schema_of(shape: Any, names: list[str]) -> StructType:
    known = {field.name: field for field in [*(shape.initial or ()), *shape.rows]}
    if shape.initial is not None and names == shape.initial.names:
        return shape.initial
    return StructType([known[name] for name in names])
