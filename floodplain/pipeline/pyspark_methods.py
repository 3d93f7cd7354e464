"""PySpark's method names on streams. Those with one clear meaning here work; the others raise an error with the equivalent."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn, cast

from floodplain.errors import BadInput, NoSuchMethod
from floodplain.expressions.columns import Given, expression_named, name_of, written
from floodplain.expressions.identifiers import quoted
from floodplain.operators.aggregates import functions
from floodplain.operators.aggregates.base import Aggregate
from floodplain.pipeline.pyspark_renames import STREAM
from floodplain.state.durations import to_ms

if TYPE_CHECKING:
    from floodplain.pipeline.stream import Stream
    from floodplain.pipeline.writer import StreamWriter

_WINDOWS = {"window": "fp.tumbling('10 minutes')", "session_window": "fp.session('10 minutes')"}


def no_attribute(owner: object, name: str, *tables: Mapping[str, str]) -> NoReturn:
    """Raises for a missing attribute: for a name of PySpark, with the equivalent in ``tables``; otherwise, with similar names."""
    kind = type(owner).__name__
    hint = next((table[name] for table in tables if name in table), None)
    if hint is not None:
        raise NoSuchMethod(f"{kind} has no {name}, as PySpark has: {hint.format(name=name)}", name=name, obj=owner)
    known = {each for each in dir(type(owner)) if not each.startswith("_")}
    close = get_close_matches(name, known, 3)
    suggestion = f"; did you mean {' or '.join(close)}?" if close else ""
    raise AttributeError(f"{kind} has no attribute {name!r}{suggestion}", name=name, obj=owner)


class GroupedNames:
    """Methods of Spark's ``GroupedData``, on a keyed stream or on windows."""

    if TYPE_CHECKING:
        agg: Callable[..., "Stream"]

    def count(self) -> "Stream":
        """``agg(count=fp.count())``."""
        return self.agg(count=functions.count())

    def sum(self, *columns: Given) -> "Stream":
        """``agg(sum_v=fp.sum("v"))``, for each column."""
        return self._each("sum", functions.sum, columns)

    def avg(self, *columns: Given) -> "Stream":
        """``agg(avg_v=fp.avg("v"))``, for each column."""
        return self._each("avg", functions.avg, columns)

    mean = avg

    def min(self, *columns: Given) -> "Stream":
        """``agg(min_v=fp.min("v"))``, for each column."""
        return self._each("min", functions.min, columns)

    def max(self, *columns: Given) -> "Stream":
        """``agg(max_v=fp.max("v"))``, for each column."""
        return self._each("max", functions.max, columns)

    def _each(self, call: str, kind: Callable[[Any], Aggregate], columns: Sequence[Given]) -> "Stream":
        if not columns:
            raise BadInput(f"{call} needs the names of columns: {call}('v'), or agg(total=fp.{call}('v'))")
        return self.agg(*(kind(quoted(name_of(column, call))) for column in columns))


class SparkNames(GroupedNames):
    """Methods of Spark's ``DataFrame`` under their names there."""

    @property
    def _me(self) -> "Stream":
        return cast("Stream", self)

    def __getattr__(self, name: str) -> Any:
        no_attribute(self, name, STREAM)

    def groupBy(self, *columns: Given) -> "Stream":
        """``key_by``."""
        keys = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list | tuple) else list(columns)
        for column in keys:
            function = (written(column) or "").partition("(")[0]
            if function in _WINDOWS and not isinstance(column, str):
                raise BadInput(
                    f"groupBy: a window is no key column: key_by the others, if any, then .window({_WINDOWS[function]}).agg(…)"
                )
        return self._me.key_by(*keys) if keys else self._me

    groupby = groupBy

    def count(self) -> "Stream":
        """On a keyed stream: ``agg(count=fp.count())``."""
        if not self._me.keys:
            raise BadInput(
                "count: a stream does not end, so it has no total: agg(n=fp.count()) emits running counts; per key, "
                "key_by(…).count()"
            )
        return super().count()

    def withWatermark(self, eventTime: Given, delayThreshold: str | timedelta) -> "Stream":
        """``watermark``."""
        return self._me.watermark(eventTime, delayThreshold)

    def withColumn(self, colName: str, col: Any) -> "Stream":
        """``with_column``."""
        return self._me.with_column(colName, col)

    def withColumns(self, colsMap: Mapping[str, Any]) -> "Stream":
        """``with_column`` for each. As in Spark, no expression can use another new column."""
        stream = self._me
        if len(colsMap) > 1:
            names = self.columns
            present = {name: quoted(name) for name in names}
            return stream.select(**{**present, **colsMap})
        for name, column in colsMap.items():
            stream = stream.with_column(name, column)
        return stream

    def withColumnRenamed(self, existing: str, new: str) -> "Stream":
        """``select`` of all columns, one of them renamed."""
        return self.withColumnsRenamed({existing: new})

    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> "Stream":
        """``select`` of all columns, some of them renamed."""
        if not set(colsMap) & set(self.columns):
            return self._me
        return self._me.select(**{colsMap.get(name, name): quoted(name) for name in self.columns})

    def drop(self, *cols: Given) -> "Stream":
        """``select`` of all other columns. As in Spark, unknown columns are ignored."""
        dropped = {name_of(column, "drop") for column in cols}
        remaining = [name for name in self.columns if name not in dropped]
        if len(remaining) == len(self.columns):
            return self._me
        if not remaining:
            raise BadInput("drop: no column is left: keep at least one")
        return self._me.select(**{name: quoted(name) for name in remaining})

    def filter(self, condition: Any) -> "Stream":
        """``where``."""
        return self._me.where(condition)

    def selectExpr(self, *expr: str | list[str]) -> "Stream":
        """``select``. An expression has an alias: ``"price * 2 as w"``."""
        selected: dict[str, Any] = {}
        for each in [text for argument in expr for text in ([argument] if isinstance(argument, str) else argument)]:
            named = {name: quoted(name) for name in self.columns} if each.strip() == "*" else dict([expression_named(each)])
            for name in selected.keys() & named.keys():
                raise BadInput(f"selectExpr: two columns would be called {name}: name one of them, as in '{each} as other'")
            selected |= named
        return self._me.select(**selected)

    def dropDuplicates(self, *subset: Given) -> "Stream":
        """``dedup`` by these columns, or by all."""
        return self._me.dedup(*self._subset(subset))

    drop_duplicates = dropDuplicates

    def dropDuplicatesWithinWatermark(self, *subset: Given) -> "Stream":
        """``dedup(…, within=…)`` with the delay of the watermark."""
        me = self._me
        if not me.delay_ms:
            raise BadInput(
                "dropDuplicatesWithinWatermark needs a watermark with a delay: call watermark before it, or use "
                "dedup('id', within='10 minutes')"
            )
        return me.dedup(*self._subset(subset), within=timedelta(milliseconds=me.delay_ms))

    def _subset(self, subset: Sequence[Given]) -> list[Given]:
        """Columns passed one by one or as one list; all columns if there are none."""
        columns = (
            list(subset[0]) if len(subset) == 1 and isinstance(subset[0], list | tuple) else [each for each in subset if each]
        )
        return columns or self.columns

    def distinct(self) -> "Stream":
        """``dedup`` by all columns."""
        return self._me.dedup(*self.columns)

    def foreachBatch(self, func: Callable[[Any, int], None]) -> Any:
        """``foreach_batch``."""
        return self._me.foreach_batch(func)

    @property
    def columns(self) -> list[str]:
        """The names in ``schema()``."""
        return list(self._me.schema().names)

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and Arrow types of ``schema()``."""
        return [(field.name, str(field.type)) for field in self._me.schema()]

    def printSchema(self, level: int | None = None) -> None:  # noqa: ARG002
        """Prints ``schema()``."""
        print(self._me.schema().to_string(show_field_metadata=False, show_schema_metadata=False))  # noqa: T201 — what it is for

    @property
    def sparkSession(self) -> Any:
        """The session of the input."""
        return next(iter(self._me.sources.values())).sparkSession

    @property
    def isStreaming(self) -> bool:
        """Whether the input is streaming; false for a static DataFrame."""
        return all(getattr(rows, "isStreaming", True) for rows in self._me.sources.values())

    @property
    def writeStream(self) -> "StreamWriter":
        """``write(…).start(state=…)`` as Spark writes it: ``checkpointLocation`` is the location of the state."""
        return self._me.writing()


def trigger_of(trigger: Any) -> dict[str, Any] | None:
    """The arguments of Spark's ``trigger`` for ``start(trigger=)``: ``"1 second"``, ``"availableNow"``, or a mapping."""
    if trigger is None or trigger == {}:
        return None
    if isinstance(trigger, str) and trigger.replace("_", "").lower() in ("availablenow", "once"):
        return {"availableNow": True}
    if isinstance(trigger, str | timedelta):
        return {"processingTime": f"{to_ms(trigger, 'trigger')} milliseconds"}
    if isinstance(trigger, Mapping) and len(trigger) == 1:
        ((kind, value),) = trigger.items()
        if kind in ("availableNow", "once", "processingTime") and value:
            return {kind: value}
    raise BadInput(
        f"trigger={trigger!r} is not known: use 'availableNow', an interval such as '1 second', or an argument of Spark's "
        "trigger, such as {'processingTime': '1 second'}; continuous and real-time modes are not supported"
    )


def check_side(other: Any) -> None:
    """Raises ``BadInput`` unless this can be the other side of a join."""
    if hasattr(other, "check_same_input"):
        return
    what = "an Output, which has its sinks already" if hasattr(other, "outlets") else f"a {type(other).__name__}"
    raise BadInput(
        f"join: the other side is {what}: begin with fp.stream(left=one, right=other) and join .source('left') with "
        ".source('right'); a static table is joined in transform(lambda df: df.join(…)), another state by lookup(…)"
    )
