"""The initial state of a drop-in: rows of a static DataFrame that come with the first epoch, exactly once.

They travel with the rows of that epoch, through the same exchange and in the same transaction: if the epoch
fails, the next attempt has them again; once it is committed they never come again, whatever restarts.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.errors import BadInput
from floodplain.expressions.identifiers import quoted
from floodplain.store.store import Store

INITIAL = "_initial_state"
"""The column that holds a row of the initial state; null for an ordinary row."""


class InitialRows:
    """A stateless step that adds the initial state to the rows of the first epoch."""

    def __init__(self, store: Store, initial: DataFrame, initial_keys: Sequence[str], keys: Sequence[str]) -> None:
        self._store = store
        self._initial = initial
        self._keys = dict(zip(keys, initial_keys, strict=True))

    def __call__(self, rows: DataFrame) -> DataFrame:
        if self._store.history.refresh().epoch > 0:
            return rows
        if INITIAL in rows.columns:
            raise BadInput(f"a column of the input is called {INITIAL}, which is to hold the initial state: rename it")
        whole = F.struct(*[F.col(quoted(name)) for name in self._initial.columns]).alias(INITIAL)
        states = self._initial.select(*[self._column(field) for field in rows.schema.fields], whole)
        empty = F.lit(None).cast(states.schema[INITIAL].dataType).alias(INITIAL)
        return rows.select(*[F.col(quoted(name)) for name in rows.columns], empty).unionByName(states)

    def _column(self, field: Any) -> Any:
        column = F.col(quoted(self._keys[field.name])) if field.name in self._keys else F.lit(None)
        return column.cast(field.dataType).alias(field.name)
