"""The DataFrame that the drop-in returns, and its groups: each call is analysed by Spark at once, and translated at the start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, GroupedData

from floodplain.errors import BadInput
from floodplain.expressions.identifiers import quoted
from floodplain.spark.downstream.compiler import compiled, refused_by_spark
from floodplain.spark.downstream.methods import (
    ACTION,
    ANSWERED,
    GROUPING,
    NOT_HERE,
    Nulls,
    Statistics,
    is_property,
)
from floodplain.spark.downstream.refused import Refused, refused
from floodplain.spark.downstream.steps import Chain
from floodplain.spark.transform_with_state.source import Source, processor_node, source_of
from floodplain.spark.transform_with_state.writer import StatefulWriter


@dataclass(frozen=True, eq=False)
class StatefulFrame:
    """Stands where Spark gives a DataFrame. Spark's own plan of it answers for columns, types and errors."""

    _planned: DataFrame
    _sources: Mapping[int, Source]
    """The processors, by the id of the first column of their output."""

    @property
    def writeStream(self) -> StatefulWriter:
        sources = [
            source for _, source in sorted(self._sources.items())
        ]  # Spark numbers columns upwards, so upstream comes first
        failure = next((source.failure for source in sources if source.failure is not None), None)
        return StatefulWriter(self._chain, self._planned, sources[0].rows, failure)

    def _chain(self) -> Chain:
        return compiled(self._planned, self._sources)

    def transform(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> "StatefulFrame":
        made = func(self, *args, **kwargs)
        if not isinstance(made, StatefulFrame):
            raise BadInput(f"transform: the function returned {type(made).__name__}, not the frame with methods applied")
        return made

    @property
    def na(self) -> Nulls:
        return Nulls(self)

    @property
    def stat(self) -> Statistics:
        return Statistics(self)

    def __getitem__(self, item: Any) -> Any:
        made = self._planned[item]
        return checked("select", made, self._sources) if isinstance(made, DataFrame) else made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in NOT_HERE:
            raise refused(name, NOT_HERE[name])
        if name == "_jdf":
            raise refused("a method of another DataFrame that takes this one", "call it on this one, as in frame.join(table)")
        if name in ANSWERED:
            return self._answer(name)
        if hasattr(DataFrame, name):
            return self._property(name) if is_property(name) else partial(self._call, name)
        if name in self._planned.columns:
            return self._planned[quoted(name)]
        raise AttributeError(f"'DataFrame' object has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        public = [name for name in dir(DataFrame) if not name.startswith("_")]
        return sorted({*super().__dir__(), *public, *self._planned.columns})

    def __repr__(self) -> str:
        return repr(self._planned)

    def _answer(self, name: str) -> Any:
        answer = getattr(self._planned, name)
        return (lambda *args, **kwargs: answer(*map(_plan_of, args), **kwargs)) if callable(answer) else answer

    def _property(self, name: str) -> Any:
        """Spark refuses those of a DataFrame that is not streaming with its own errors."""
        getattr(self._planned, name)
        raise refused(name, ACTION)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        sources = {**self._sources, **_sources_in([*args, *kwargs.values()])}
        call = getattr(self._planned, name)
        made = call(*map(_plan_of, args), **{key: _plan_of(value) for key, value in kwargs.items()})
        if isinstance(made, GroupedData) and name in GROUPING:
            return StatefulGroups(made, sources)
        if isinstance(made, list) and made and all(isinstance(each, DataFrame) for each in made):
            return [checked(name, each, sources) for each in made]
        if not isinstance(made, DataFrame):
            raise refused(name, ACTION)
        return checked(name, made, sources)


@dataclass(frozen=True, eq=False)
class StatefulGroups:
    """Spark's ``GroupedData`` over a stateful frame."""

    _grouped: GroupedData
    _sources: Mapping[int, Source]

    def transformWithState(self, *args: Any, **kwargs: Any) -> StatefulFrame:
        return self._processed(self._grouped.transformWithState, args, kwargs, pandas=False)

    def transformWithStateInPandas(self, *args: Any, **kwargs: Any) -> StatefulFrame:
        return self._processed(self._grouped.transformWithStateInPandas, args, kwargs, pandas=True)

    def pivot(self, *args: Any, **kwargs: Any) -> "StatefulGroups":
        return replace(self, _grouped=self._grouped.pivot(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(GroupedData, name):
            raise AttributeError(f"'GroupedData' object has no attribute {name!r}")
        return partial(self._call, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(GroupedData) if not name.startswith("_"))})

    def __repr__(self) -> str:
        return repr(self._grouped)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> StatefulFrame:
        if name == "cogroup":
            raise refused(name, "a group would have the rows of one batch only: use transformWithState")
        return checked(name, getattr(self._grouped, name)(*args, **kwargs), self._sources)

    def _processed(self, call: Callable[..., DataFrame], args: Any, kwargs: Any, *, pandas: bool) -> StatefulFrame:
        arguments = bound_arguments(*args, **kwargs)
        return processed(self._grouped, call(*arguments), arguments, self._sources, pandas=pandas)


def bound_arguments(
    statefulProcessor: Any,
    outputStructType: Any,
    outputMode: str,
    timeMode: str,
    initialState: Any = None,
    eventTimeColumnName: str = "",
) -> tuple[Any, ...]:
    """The arguments of ``transformWithState``, by position."""
    return (statefulProcessor, outputStructType, outputMode, timeMode, initialState, eventTimeColumnName)


def processed(
    grouped: Any, planned: DataFrame, arguments: tuple[Any, ...], sources: Mapping[int, Source], *, pandas: bool
) -> StatefulFrame:
    """The output of one more processor. ``planned`` is Spark's own plan of the call."""
    source = source_of(grouped._df, planned, arguments, pandas=pandas)
    first = processor_node(planned).output().head().exprId().id()
    name = "transformWithStateInPandas" if pandas else "transformWithState"
    return checked(name, planned, {**sources, first: source})


def checked(method: str, planned: DataFrame, sources: Mapping[int, Source]) -> StatefulFrame:
    """Raises ``BadInput`` for a call that Spark would run and that has no equal here. What Spark does not run either raises its
    error at the start."""
    try:
        compiled(planned, sources)
    except Refused as error:
        if not refused_by_spark(planned):
            raise Refused(f"{method}: {error}") from None
    return StatefulFrame(planned, sources)


def _plan_of(argument: Any) -> Any:
    return argument._planned if isinstance(argument, StatefulFrame) else argument


def _sources_in(arguments: list[Any]) -> dict[int, Source]:
    frames = [argument for argument in arguments if isinstance(argument, StatefulFrame)]
    return {number: source for frame in frames for number, source in frame._sources.items()}
