"""What PySpark users type by habit: it works where it can only mean one thing here; else the error names our way."""

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
    from floodplain.pipeline.writer import Writing

_WINDOWS = {"window": "fp.tumbling('10 minutes')", "session_window": "fp.session('10 minutes')"}


def no_attribute(owner: object, name: str, *tables: Mapping[str, str]) -> NoReturn:
    """Raises for an attribute that is not there: for a name that PySpark has, with what to write here; else with close names."""
    kind = type(owner).__name__
    hint = next((table[name] for table in tables if name in table), None)
    if hint is not None:
        raise NoSuchMethod(f"{kind} has no {name}, as PySpark has: {hint.format(name=name)}", name=name, obj=owner)
    known = {each for each in dir(type(owner)) if not each.startswith("_")}
    close = get_close_matches(name, known, 3)
    told = f"; did you mean {' or '.join(close)}?" if close else ""
    raise AttributeError(f"{kind} has no attribute {name!r}{told}", name=name, obj=owner)


class GroupedNames:
    """Methods of Spark's ``GroupedData``, of keys or of keys and windows."""

    if TYPE_CHECKING:
        agg: Callable[..., "Stream"]

    def count(self) -> "Stream":
        """``agg(count=fp.count())``."""
        return self.agg(count=functions.count())

    def sum(self, *columns: Given) -> "Stream":
        """``agg(sum_v=fp.sum("v"))``, and so of several columns."""
        return self._each("sum", functions.sum, columns)

    def avg(self, *columns: Given) -> "Stream":
        """``agg(avg_v=fp.avg("v"))``, and so of several columns."""
        return self._each("avg", functions.avg, columns)

    mean = avg

    def min(self, *columns: Given) -> "Stream":
        """``agg(min_v=fp.min("v"))``, and so of several columns."""
        return self._each("min", functions.min, columns)

    def max(self, *columns: Given) -> "Stream":
        """``agg(max_v=fp.max("v"))``, and so of several columns."""
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
        given = list(columns[0]) if len(columns) == 1 and isinstance(columns[0], list | tuple) else list(columns)
        for column in given:
            function = (written(column) or "").partition("(")[0]
            if function in _WINDOWS and not isinstance(column, str):
                raise BadInput(
                    f"groupBy: a window is no column: key_by the others, if any, and then .window({_WINDOWS[function]}).agg(…)"
                )
        return self._me.key_by(*given) if given else self._me

    groupby = groupBy

    def count(self) -> "Stream":
        """Of a keyed stream: ``agg(count=fp.count())``."""
        if not self._me.keys:
            raise BadInput(
                "count: a stream has no end to wait for: agg(n=fp.count()) counts as rows come; per key, key_by(…).count()"
            )
        return super().count()

    def withWatermark(self, eventTime: Given, delayThreshold: str | timedelta) -> "Stream":
        """``watermark``."""
        return self._me.watermark(eventTime, delayThreshold)

    def withColumn(self, colName: str, col: Any) -> "Stream":
        """``with_column``."""
        return self._me.with_column(colName, col)

    def withColumns(self, colsMap: Mapping[str, Any]) -> "Stream":
        """``with_column`` for each; none of them sees another, as in Spark."""
        made = self._me
        if len(colsMap) > 1:
            names = self.columns
            kept = {name: quoted(name) for name in names}
            return made.select(**{**kept, **colsMap})
        for name, column in colsMap.items():
            made = made.with_column(name, column)
        return made

    def withColumnRenamed(self, existing: str, new: str) -> "Stream":
        """``select`` of all columns, one under another name."""
        return self.withColumnsRenamed({existing: new})

    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> "Stream":
        """``select`` of all columns, some under other names."""
        if not set(colsMap) & set(self.columns):
            return self._me
        return self._me.select(**{colsMap.get(name, name): quoted(name) for name in self.columns})

    def drop(self, *cols: Given) -> "Stream":
        """``select`` of all other columns; one that is not there is no error, as in Spark."""
        gone = {name_of(column, "drop") for column in cols}
        kept = [name for name in self.columns if name not in gone]
        if len(kept) == len(self.columns):
            return self._me
        if not kept:
            raise BadInput("drop: no column is left")
        return self._me.select(**{name: quoted(name) for name in kept})

    def filter(self, condition: Any) -> "Stream":
        """``where``."""
        return self._me.where(condition)

    def selectExpr(self, *expr: str | list[str]) -> "Stream":
        """``select``; an expression says its name: ``"price * 2 as w"``."""
        made: dict[str, Any] = {}
        for each in [text for given in expr for text in ([given] if isinstance(given, str) else given)]:
            named = {name: quoted(name) for name in self.columns} if each.strip() == "*" else dict([expression_named(each)])
            for name in made.keys() & named.keys():
                raise BadInput(f"selectExpr: two columns would be called {name}: name one of them, as in '{each} as other'")
            made |= named
        return self._me.select(**made)

    def dropDuplicates(self, *subset: Given) -> "Stream":
        """``dedup`` by these columns, or by all."""
        given = list(subset[0]) if len(subset) == 1 and isinstance(subset[0], list | tuple) else [each for each in subset if each]
        return self._me.dedup(*(given or self.columns))

    drop_duplicates = dropDuplicates

    def dropDuplicatesWithinWatermark(self, *subset: Given) -> "Stream":
        """``dedup(…, within=…)`` with the delay of the watermark."""
        me = self._me
        if not me.delay_ms:
            raise BadInput("dropDuplicatesWithinWatermark goes by the delay of the watermark: dedup('id', within='10 minutes')")
        given = list(subset[0]) if len(subset) == 1 and isinstance(subset[0], list | tuple) else [each for each in subset if each]
        return me.dedup(*(given or self.columns), within=timedelta(milliseconds=me.delay_ms))

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
        """Whether the input is a stream; over a static DataFrame it is not."""
        return all(getattr(rows, "isStreaming", True) for rows in self._me.sources.values())

    @property
    def writeStream(self) -> "Writing":
        """``write(…).start(state=…)`` in Spark's words: ``checkpointLocation`` is where the state is."""
        return self._me.writing()


def trigger_of(given: Any) -> dict[str, Any] | None:
    """What ``start(trigger=)`` was given, as Spark's ``trigger`` takes it: ``"1 second"``, ``"availableNow"``, or a mapping."""
    if given is None or given == {}:
        return None
    if isinstance(given, str) and given.replace("_", "").lower() in ("availablenow", "once"):
        return {"availableNow": True}
    if isinstance(given, str | timedelta):
        return {"processingTime": f"{to_ms(given, 'trigger')} milliseconds"}
    if isinstance(given, Mapping) and len(given) == 1:
        ((kind, value),) = given.items()
        if kind in ("availableNow", "once", "processingTime") and value:
            return {kind: value}
    raise BadInput(
        f"trigger={given!r} is not known: use 'availableNow', an interval as '1 second', or what Spark's trigger takes, as "
        "{'processingTime': '1 second'}; continuous and real-time modes are Spark's own"
    )


def check_side(other: Any) -> None:
    """Raises unless this can be the other side of a join."""
    if hasattr(other, "check_same_input"):
        return
    what = "an Output, which has its sinks already" if hasattr(other, "outlets") else f"a {type(other).__name__}"
    raise BadInput(
        f"join: the other side is {what}: begin with fp.stream(left=one, right=other) and join .source('left') with "
        ".source('right'); a static table is joined in transform(lambda df: df.join(…)), another state by lookup(…)"
    )
