"""``writeStream`` of the drop-in: Spark's builder methods over our own sinks."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from floodplain.errors import BadInput, FloodplainError, SchemaMismatch
from floodplain.pipeline.stream import Output, Stream
from floodplain.runtime.lease_takeover import take_over
from floodplain.scratch import Scratch
from floodplain.settings import Workers
from floodplain.spark.downstream.refused import refused
from floodplain.spark.downstream.steps import Chain
from floodplain.spark.state_reader.registration import register_in_background
from floodplain.spark.transform_with_state.failing import FailingQuery
from floodplain.spark.transform_with_state.query import StatefulQuery
from floodplain.spark.transform_with_state.restart import check_name, end_active_run
from floodplain.store.store import Store
from floodplain.tiers.open import folder_of
from floodplain.versions.log.commit import commit
from floodplain.versions.records.edit import DropTable
from floodplain.versions.records.manifest import Manifest

_PASSING = ("memory", "console", "noop", "foreachBatch")
"""Formats that Spark runs on a temporary checkpoint if none is set."""
_CHECKPOINT = "spark.sql.streaming.checkpointLocation"
_OURS = "floodplain."
_SLOTS = f"{_OURS}slots"
_ENGINE = f"{_OURS}engine"
_WORKERS = f"{_OURS}workers"
_SHUFFLE = "spark.sql.shuffle.partitions"
_STORE = f"{_OURS}store."
"""Prefix of the options of the object store that has the state."""


class StatefulWriter:
    """The methods of Spark's ``DataStreamWriter`` that we support for stateful output. ``start`` returns a ``StatefulQuery``."""

    def __init__(
        self,
        chain: Callable[[], Chain],
        planned: DataFrame,
        rows: DataFrame,
        failure: FloodplainError | None = None,
    ) -> None:
        """``chain``: the steps of what is planned. ``rows``: the input of the first. ``failure``: of a processor's ``init``."""
        self._chain = chain
        self._planned = planned
        self._rows = rows
        self._failure = failure
        self._spark: SparkSession = planned.sparkSession
        self._format = ""
        self._options: dict[str, str] = {}
        self._mode = "append"
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._function: Callable[[DataFrame, int], None] | None = None

    def format(self, source: str) -> "StatefulWriter":
        self._format = source
        return self

    def option(self, key: str, value: Any) -> "StatefulWriter":
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> "StatefulWriter":
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> "StatefulWriter":
        if not isinstance(outputMode, str) or not outputMode.strip():
            raise PySparkValueError(
                errorClass="VALUE_NOT_NON_EMPTY_STR",
                messageParameters={"arg_name": "outputMode", "arg_value": str(outputMode)},
            )
        self._mode = outputMode
        return self

    def queryName(self, queryName: str) -> "StatefulWriter":
        if not isinstance(queryName, str) or not queryName.strip():
            raise PySparkValueError(
                errorClass="VALUE_NOT_NON_EMPTY_STR", messageParameters={"arg_name": "queryName", "arg_value": str(queryName)}
            )
        self._name = queryName
        return self

    def trigger(self, **kwargs: Any) -> "StatefulWriter":
        requested = {name: value for name, value in kwargs.items() if value is not None}
        if len(requested) != 1:
            raise PySparkValueError(errorClass="ONLY_ALLOW_SINGLE_TRIGGER", messageParameters={})
        if "continuous" in requested:
            _refuse("a continuous trigger")
        self._trigger = requested
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> "StatefulWriter":
        if not callable(func):
            raise PySparkTypeError(
                errorClass="NOT_CALLABLE", messageParameters={"arg_name": "func", "arg_type": type(func).__name__}
            )
        self._function = func
        self._format = "foreachBatch"
        return self

    def foreach(self, f: Any) -> NoReturn:  # noqa: ARG002
        _refuse("foreach")

    def partitionBy(self, *cols: Any) -> NoReturn:  # noqa: ARG002
        _refuse("partitionBy")

    def clusterBy(self, *cols: Any) -> NoReturn:  # noqa: ARG002
        _refuse("clusterBy")

    def toTable(self, tableName: str, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG002
        _refuse("toTable")

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StatefulQuery:
        """Run it: on the state at ``checkpointLocation``, from where that state left off."""
        self.options(**options)
        for value, setter in ((format, self.format), (outputMode, self.outputMode), (queryName, self.queryName)):
            if value is not None:
                setter(value)
        if partitionBy is not None:
            _refuse("partitionBy")
        if path is not None:
            self.option("path", path)
        self._check_mode()
        chain = self._chain()
        check_name(self._spark, self._name)
        passing, location = self._location()
        if self._failure is not None:
            return self._failing(self._failure, location)
        access = {key.removeprefix(_STORE): value for key, value in self._options.items() if key.startswith(_STORE)}
        store = Store.open(location, create=True, options=access)
        end_active_run(self._spark, store)
        try:
            resumed, changes = chain.resumed(store)
        except SchemaMismatch as error:
            return self._failing(error, location)
        self._purge(store, resumed.deleted)
        output = self._to(resumed.stream(store, self._mode.lower()))
        slots, trigger = self._slots(store.head), self._trigger or None
        started = output.start(
            state=location,
            slots=slots,
            trigger=trigger,
            options=access,
            name=self._name,
            evolve=changes.evolve,
            rename=changes.rename,
            **self._engine(),
        )
        register_in_background(self._spark)
        query = StatefulQuery(started, self._name)
        if passing is not None:
            started.then(query.progress.settle)
            started.then(passing.remove)
        return query

    def _failing(self, failure: FloodplainError, location: str) -> StatefulQuery:
        return StatefulQuery(FailingQuery(self._rows, failure, location, self._trigger, self._name), self._name)

    def _slots(self, head: Manifest) -> int | None:
        """As requested. Else, as in Spark, a new state has one for each partition of a shuffle, if the user has set that. None:
        as many as the state has, or as there are cores."""
        if _SLOTS in self._options:
            return int(self._options[_SLOTS])
        session: Any = self._spark._jsparkSession
        if head.assignment is not None or not session.sessionState().conf().contains(_SHUFFLE):
            return None
        return min(int(self._spark.conf.get(_SHUFFLE) or 1), head.key_groups)

    def _engine(self) -> dict[str, Any]:
        """As requested; a number of workers requests workers."""
        engine = self._options.get(_ENGINE, "workers" if _WORKERS in self._options else None)
        if _WORKERS not in self._options:
            return {} if engine is None else {"engine": engine}
        if engine != "workers":
            raise BadInput(f"option {_WORKERS} is for {_ENGINE} = workers, and that is {engine!r}: leave one of the two out")
        return {"engine": Workers(count=_number(_WORKERS, self._options[_WORKERS]))}

    def _check_mode(self) -> None:
        """Raises what Spark itself raises at the start of a query in a mode that its plan does not support."""
        jvm: Any = self._spark._jvm
        mode = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes.apply(self._mode)
        plan = self._planned._jdf.queryExecution().analyzed()
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
        if self._mode.lower() == "complete":
            why = "all results so far would be written anew in every batch: use 'update', or 'append' with a watermark"
            raise refused("outputMode('complete')", why)

    def _location(self) -> tuple[Scratch | None, str]:
        """The location of the state, and its folder if that is temporary."""
        passing = None
        location = self._options.get("checkpointLocation")
        base = self._spark.conf.get(_CHECKPOINT, None)
        if location is None and base and self._name:
            location = f"{base.rstrip('/')}/{self._name}"
        if location is None and self._format in _PASSING:
            passing = Scratch("temporary")
            location = str(passing.path)
        if location is None:
            raise AnalysisException(
                "checkpointLocation must be specified either through option('checkpointLocation', …) or "
                f"SparkSession.conf.set('{_CHECKPOINT}', …)"
            )
        folder = folder_of(location)
        if folder is not None and (folder / "offsets").exists() and (folder / "metadata").is_file():
            raise BadInput(
                f"{location} is a checkpoint of a query of Spark itself: make a state of it with "
                f"fp.import_spark_checkpoint({location!r}, state='…') and go on from there, or choose a new checkpointLocation"
            )
        return passing, location

    def _purge(self, store: Store, tables: frozenset[str]) -> None:
        """Forget the states that ``init`` deletes and no longer declares."""
        gone = [DropTable(table) for table in store.head.schemas if table in tables]
        if gone:
            with take_over(store, f"purge_{store.history.randomness.nonce()}") as writer:
                commit(store.history, gone, token=writer.token)

    def _to(self, rows: Stream) -> Output:
        options = {
            key: value for key, value in self._options.items() if key != "checkpointLocation" and not key.startswith(_OURS)
        }
        match self._format:
            case "foreachBatch":
                function = self._function
                assert function is not None
                return rows.foreach_batch(_numbered(function))
            case "memory":
                return rows.foreach_batch(_TempView(self._spark, self._name, self._planned))
            case "noop":
                return rows.foreach_batch(_ignore)
            case "console":
                count = options.get("numRows", "20")
                return rows.write("console", rows=int(count))
            case "kafka":
                return rows.write("kafka", **_kafka(options, self._planned.columns))
            case "":
                return rows.write(self._spark.conf.get("spark.sql.sources.default", "parquet") or "parquet", **options)
            case _:
                return rows.write(self._format, **options)


def _numbered(function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Spark's batches begin with 0, our epochs with 1."""

    @wraps(function)
    def call(made: DataFrame, epoch: int) -> None:
        function(made, epoch - 1)

    return call


def _kafka(options: dict[str, str], columns: list[str]) -> dict[str, Any]:
    """Spark's options of the Kafka sink as ours; as there, the columns ``key`` and ``value`` are sent."""
    config = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    servers = config.pop("bootstrap.servers", "")
    others = {name: value for name, value in options.items() if not name.startswith("kafka.")}
    key = {"key": "key"} if "key" in columns else {}
    return {"servers": servers, "topic": "", "value": "value", **key, **others, "config": config}


def _ignore(rows: DataFrame, epoch: int) -> None:
    """The ``noop`` format: discards output."""


class _TempView:
    """All output so far as a temporary view, as Spark's memory sink has it."""

    def __init__(self, spark: SparkSession, name: str | None, planned: DataFrame) -> None:
        if name is None:
            raise AnalysisException("queryName must be specified for memory sink")
        self._spark = spark
        self._name = name
        self._schema = planned.schema
        self._table = to_arrow_schema(planned.schema, timezone="UTC").empty_table()
        self._show()

    def __call__(self, rows: DataFrame, epoch: int) -> None:  # noqa: ARG002 — gone with the process, so never a repeat
        self._table = pa.concat_tables([self._table, rows.toArrow().cast(self._table.schema)])
        self._show()

    def _show(self) -> None:
        self._spark.createDataFrame(self._table, self._schema).createOrReplaceTempView(self._name)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"option {name} is {text!r}: give a whole number") from None


def _refuse(what: str) -> NoReturn:
    raise BadInput(
        f"{what} is not available for a stateful output of Floodplain: use foreachBatch(function) for what it would do"
    )
