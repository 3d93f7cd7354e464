"""The DataFrame that the drop-in returns: its stateless methods are analysed at once and applied to the output."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.errors import BadInput, FloodplainError
from floodplain.expressions.identifiers import quoted
from floodplain.pipeline.stream import Stream
from floodplain.spark.runtime import stream
from floodplain.spark.transform_with_state.evolution import renamed_keys, resumed
from floodplain.spark.transform_with_state.failing import FailingQuery
from floodplain.spark.transform_with_state.initial_state import InitialRows
from floodplain.spark.transform_with_state.process import StatefulProcess
from floodplain.spark.transform_with_state.writer import Resumption, StatefulWriter
from floodplain.state.tables import stored_states
from floodplain.store.store import Store

OPERATOR = "transform_with_state"
"""The name of the state. Spark does not know an operator by its class either, so a processor may be renamed."""

RECORDED = frozenset(
    (
        *("select", "selectExpr", "where", "filter", "withColumn", "withColumns", "withColumnRenamed", "withColumnsRenamed"),
        *("withMetadata", "drop", "alias", "fillna", "dropna", "replace", "toDF", "to", "unpivot", "melt"),
    )
)
_SHOWN = frozenset(("schema", "columns", "dtypes", "printSchema", "isStreaming", "explain", "sparkSession", "storageLevel"))
_STATELESS = frozenset(("Project", "Filter", "SubqueryAlias", "Generate", "Expand", "UpdateEventTimeWatermarkColumn"))
_TARGET = "TransformWithStateInPySpark"


@dataclass(frozen=True)
class Source:
    """The input of a processor."""

    rows: DataFrame
    process: StatefulProcess
    deleted: frozenset[str] = frozenset()
    """States that ``init`` deletes."""
    initial: DataFrame | None = None
    initial_keys: tuple[str, ...] = ()
    failure: FloodplainError | None = None
    """What ``init`` raised, or what is wrong with the states that it declares."""

    def resumed(self, store: Store) -> Resumption:
        """It on what is in the store, as Spark would go on with that."""
        definition = store.head.definitions.get(OPERATOR)
        before, now = definition.spark if definition is not None else None, self.process.in_sparks_terms
        state = resumed(self.rows.sparkSession, before, self.process.declared, now)
        if state.failure is not None:
            return Resumption(failing=partial(FailingQuery, self.rows, state.failure))
        process = self.process.on(state)
        held = stored_states(OPERATOR, {table: versions[-1] for table, versions in store.head.schemas.items()})
        evolve = {process.table_names[name]: function for name, function in state.evolve.items()}
        evolve = {f"{OPERATOR}.{name}": function for name, function in evolve.items() if name in held}
        changes = {"evolve": evolve, "rename": dict(renamed_keys(before, now))}
        return Resumption(replace(self, process=process).stream(store), changes)

    def stream(self, store: Store) -> Stream:
        keys = self.process.shape.keys
        rows = stream(self.rows)
        if self.initial is not None:
            rows = rows.transform(InitialRows(store, self.initial, self.initial_keys, keys))
        return rows.key_by(*keys).process(self.process, name=OPERATOR)


@dataclass(frozen=True)
class _Call:
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, rows: DataFrame) -> DataFrame:
        made: DataFrame = getattr(rows, self.method)(*self.args, **self.kwargs)
        return made


@dataclass(frozen=True, eq=False)
class StatefulFrame:
    """Stands where ``transformWithState`` returns a DataFrame. Spark's own plan of it answers for columns, types and errors."""

    _source: Source
    _planned: DataFrame
    _calls: tuple[_Call, ...] = ()

    @property
    def writeStream(self) -> StatefulWriter:
        source = self._source
        failing = None if source.failure is None else partial(FailingQuery, source.rows, source.failure)
        return StatefulWriter(source.resumed, self._planned, source.deleted, self._trailing(), failing)

    def transform(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> "StatefulFrame":
        made = func(self, *args, **kwargs)
        if not isinstance(made, StatefulFrame):
            raise BadInput(
                f"transform: the function returned {type(made).__name__}, not the frame with stateless methods applied"
            )
        return made

    @property
    def na(self) -> "_Nulls":
        return _Nulls(self)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            _ = self._planned[item]
            return F.col(item)
        if isinstance(item, int):
            return F.col(quoted(self._planned.columns[item]))
        return self.select(*item) if isinstance(item, list | tuple) else self.filter(item)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _SHOWN:
            return getattr(self._planned, name)
        if name in RECORDED:
            return lambda *args, **kwargs: self._record(name, args, kwargs)
        if hasattr(DataFrame, name):
            raise BadInput(
                f"{name} is not available behind a stateful step: only stateless methods are, as select, where or withColumn. "
                "Write the output and go on from there"
            )
        if name in self._planned.columns:
            return F.col(quoted(name))
        raise AttributeError(f"'DataFrame' object has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *RECORDED, *_SHOWN, *self._planned.columns})

    def __repr__(self) -> str:
        return repr(self._planned)

    def _record(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "StatefulFrame":
        call = _Call(method, args, kwargs)
        planned = call(self._planned)
        _check_stateless(method, planned)
        return replace(self, _planned=planned, _calls=(*self._calls, call))

    def _trailing(self) -> Callable[[DataFrame], DataFrame] | None:
        calls = self._calls
        if not calls:
            return None

        def apply(rows: DataFrame) -> DataFrame:
            for call in calls:
                rows = call(rows)
            return rows

        return apply


class _Nulls:
    """Spark's ``na`` of a frame."""

    def __init__(self, frame: StatefulFrame) -> None:
        self.fill = frame.fillna
        self.drop = frame.dropna
        self.replace = frame.replace


def _check_stateless(method: str, planned: Any) -> None:
    """Raises if what Spark made of a call needs more than one row at a time."""
    node = planned._jdf.queryExecution().analyzed()
    while node.getClass().getSimpleName() != _TARGET:
        kind = node.getClass().getSimpleName()
        if kind not in _STATELESS:
            raise BadInput(f"{method} makes a {kind} step, which is not stateless: write the output and go on from there")
        node = node.children().head()


def names_of_keys(planned: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of the rows, and those of the initial state, as Spark resolved them."""
    node = planned._jdf.queryExecution().analyzed()
    while node.getClass().getSimpleName() != _TARGET:
        node = node.children().head()
    count = node.groupingAttributesLen()
    rows, initial = node.left().output(), node.right().output()
    keys = tuple(rows.apply(at).name() for at in range(count))
    return keys, tuple(initial.apply(at).name() for at in range(count)) if node.hasInitialState() else ()
