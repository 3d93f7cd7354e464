"""The pandas flavour: rows go in as an iterator of DataFrames and come out as DataFrames."""

from collections import namedtuple
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from floodplain.operators.grouping import Grouped
from floodplain.spark.compat_initial import INITIAL
from floodplain.spark.compat_rows import TIME_ZONE
from floodplain.store.layout import one_array

_CHUNK_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NO_LIMIT = 2**31 - 1


class PandasFlavour:
    """The rows of a task as Spark's worker hands them out, and what the processor made of them."""

    def __init__(self, process: Any, grouped: Grouped) -> None:
        self._schema: pa.Schema = process.output
        self._shape = process.shape
        self._settings = process.settings
        self._zone = process.settings.get(TIME_ZONE, "UTC")
        self._limit = int(process.settings.get(_CHUNK_ROWS, 10_000)) or _NO_LIMIT
        self._starts = grouped.starts.tolist()
        rows = grouped.rows
        self._initial = one_array(rows.column(INITIAL)) if INITIAL in rows.column_names else None
        self._there = None if self._initial is None else self._initial.is_valid().to_numpy(zero_copy_only=False)
        self._keys = grouped.space.keys.rename_columns(list(self._shape.keys))
        self._frame = self._as_frame(rows.select(self._shape.rows.names))
        kinds = [self._initial.type, *rows.schema.types] if self._initial is not None else rows.schema.types
        self._mixed = any(
            not (pa.types.is_string(kind) or pa.types.is_primitive(kind)) or pa.types.is_boolean(kind) for kind in kinds
        )
        self._out: list[pd.DataFrame] = []

    def groups(self) -> Iterator[tuple[tuple[Any, ...], Iterator[pd.DataFrame] | None]]:
        starts = self._starts
        keys = self._as_frame(self._keys.slice(0, len(starts) - 1)).itertuples(index=False, name=None)
        for number, key in enumerate(keys):
            low, high = starts[number], starts[number + 1]
            rows = self._frame.iloc[low:high]
            if self._there is not None:
                rows = rows[~self._there[low:high]]
            yield key, self._chunks(rows) if len(rows) else None

    def initial(self) -> list[list[pd.DataFrame]] | None:
        if self._initial is None or self._there is None:
            return None
        table = pa.Table.from_arrays(self._initial.flatten(), schema=pa.schema(list(self._initial.type)))
        frame, found = self._as_frame(table), []
        for low, high in zip(self._starts, self._starts[1:], strict=False):
            states = frame.iloc[low:high][self._there[low:high]]
            found.append(list(self._chunks(states)) if len(states) else [])
        return found

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
        found = [self._schema.empty_table()]
        for _, alike in groupby(self._out, key=lambda frame: (len(frame) > 0, tuple(frame.columns), tuple(frame.dtypes))):
            frames = list(alike)
            try:
                found.append(self._converted(pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]))
            except Exception:
                if len(frames) == 1:
                    raise
                found += map(self._converted, frames)
        return pa.concat_tables(found)

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

    def _chunks(self, rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
        for start in range(0, len(rows), self._limit):
            chunk = rows.iloc[start : start + self._limit].reset_index(drop=True)
            yield chunk.infer_objects() if self._mixed else chunk

    def _as_frame(self, table: pa.Table) -> pd.DataFrame:
        """All rows at once, with names and types as Spark's worker, which goes by way of named tuples, ends up with."""
        schema = to_arrow_schema(_schema_of(self._shape, table.column_names), timezone=self._zone)
        series = ArrowBatchTransformer.to_pandas(
            table.cast(schema).combine_chunks(),
            timezone=self._zone,
            prefer_int_ext_dtype=self._is_on("spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"),
        )
        rows = list(pd.concat(series, axis=1).itertuples(index=False, name=None))
        columns: Any = namedtuple("Row", table.column_names, rename=True)  # type: ignore[misc]
        return pd.DataFrame(rows, columns=list(columns._fields))


def _schema_of(shape: Any, names: list[str]) -> StructType:
    known = {field.name: field for field in [*(shape.initial or ()), *shape.rows]}
    if shape.initial is not None and names == shape.initial.names:
        return shape.initial
    return StructType([known[name] for name in names])
