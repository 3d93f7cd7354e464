"""Runs a ``StatefulProcessor`` of PySpark as a Floodplain process function."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

from floodplain.operators.kernel.definition import STATEFUL_PROCESSOR, OperatorSpec, ParameterSpec, Written, renamed
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import OperatorTraits, after_watermark_as_spark
from floodplain.spark.transform_with_state.calls import Calls
from floodplain.spark.transform_with_state.errors import EVENT, TIME_MODES
from floodplain.spark.transform_with_state.evolution import Resumed
from floodplain.spark.transform_with_state.handle import Declared, Recorder, declared_as, table_names
from floodplain.spark.transform_with_state.pandas import PandasFlavour
from floodplain.spark.transform_with_state.rows import RowFlavour
from floodplain.state.descriptors import State
from floodplain.state.tables import safe_names
from floodplain.state.timers import EVENT_TIMERS, PROCESSING_TIMERS
from floodplain.versions.records.definition import SparkProcessor

PANDAS_OPERATOR, ROW_OPERATOR = "transformWithStateInPandasExec", "transformWithStateInPySparkExec"
"""What Spark calls the operators that run processors."""


@dataclass(frozen=True)
class Shape:
    """The input and output schemas of a processor."""

    rows: StructType
    keys: tuple[str, ...]
    """Columns of the rows."""
    output: StructType
    initial: StructType | None = None
    """The columns of the initial state, if there is one."""
    event_time_output: str = ""
    """The column of the output that is its event time, if one is declared."""


class StatefulProcess(Process, OperatorTraits):
    """Runs the processor for the keys of a task, as Spark's worker does.

    ``settings`` are those of the session that the worker of Spark would see.
    """

    caller = Calls

    def __init__(
        self,
        processor: StatefulProcessor,
        shape: Shape,
        time_mode: str,
        declared: Mapping[str, Declared],
        settings: Mapping[str, str],
        *,
        pandas: bool,
        static: bool = False,
        output_mode: str = "append",
        deleted: Mapping[str, Declared | None] | None = None,
    ) -> None:
        self.processor = processor
        self.shape = shape
        self.time_mode = time_mode
        self.output_mode = output_mode
        self.declared = dict(declared)
        self.purged = frozenset(deleted or ())
        """What ``init`` deletes, declared or not."""
        self.deleted = {name: one for name, one in (deleted or {}).items() if one is not None and name not in self.declared}
        self.settings = dict(settings)
        self.flavour: type[Any] = PandasFlavour if pandas else RowFlavour
        self.output = to_arrow_schema(shape.output, timezone="UTC")
        self.static = static
        self.follows_watermark = time_mode == EVENT
        self.drops_late = False
        self.has_watermark = True
        """Whether Spark tells it one. Downstream of a step of processing time it does not."""
        self.taken_names = [*safe_names(dict.fromkeys(shape.keys)).values(), EVENT_TIMERS, PROCESSING_TIMERS]
        self.table_names = table_names(self.declared, self.taken_names)
        self.history = Resumed(self.declared, "")

    @property
    def timers(self) -> str:
        return EVENT_TIMERS if self.time_mode == EVENT else PROCESSING_TIMERS

    def on(self, resumed: Resumed) -> "StatefulProcess":
        """The same on a state that is there."""
        process = copy(self)
        process.history, process.declared = resumed, dict(resumed.declared)
        return process

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        name = type(self.processor).__name__
        return OperatorSpec(STATEFUL_PROCESSOR, (ParameterSpec("class", name, name, renamed),), spark=self._in_sparks_terms())

    @property
    def in_sparks_terms(self) -> SparkProcessor:
        """As the log records it."""
        return self._in_sparks_terms()

    def _in_sparks_terms(self) -> SparkProcessor:
        keys = [self.shape.rows[name] for name in self.shape.keys]
        former = self.history.former
        return SparkProcessor(
            operator=PANDAS_OPERATOR if self.flavour is PandasFlavour else ROW_OPERATOR,
            time_mode=TIME_MODES[self.time_mode],
            output_mode=self.output_mode.capitalize(),
            keys=StructType([StructField(field.name, field.dataType, field.nullable) for field in keys]).json(),
            variables={
                self.table_names[name]: declared.recorded(name, former.get(name, ())) for name, declared in self.declared.items()
            },
            deleted={name: declared.recorded(name) for name, declared in self.deleted.items()},
            gone=dict(self.history.gone),
            encoding=self.history.encoding,
        )

    def states(self) -> dict[str, State]:
        """Those of today, and those of which there may be something from earlier starts: as in Spark, that stays."""
        gone = {
            name: declared_as(variable)
            for name, variable in self.history.gone.items()
            if name not in self.purged and bool(variable.ttl_ms) == variable.ttl
        }
        names = table_names([*self.declared, *gone], self.taken_names)
        return {names[name]: declared.descriptor() for name, declared in {**gone, **self.declared}.items()}

    def on_time(self, event_time: pa.ChunkedArray, late_ms: int) -> pa.Array:
        """As Spark's stateful operators have it, a row exactly at the watermark is late."""
        if self.time_mode != EVENT:
            return pa.array(np.ones(len(event_time), bool))
        return after_watermark_as_spark(event_time, late_ms)


def declared_by(
    processor: StatefulProcessor, time_mode: str, parse: Callable[[str], StructType], *, static: bool = False
) -> tuple[dict[str, Declared], dict[str, Declared | None]]:
    """The states that ``init`` declares and deletes; ``init`` runs on a copy, so that the user's processor stays unchanged."""
    serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    own = serializer.loads(serializer.dumps(processor))
    recorder = Recorder(time_mode, parse, static=static)
    own.init(recorder)
    own.close()
    return recorder.declared, recorder.deleted
