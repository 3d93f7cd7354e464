"""``writeStream`` of a stream: the builder methods of Spark's ``DataStreamWriter``, on top of ``write`` and ``start``."""

import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from floodplain.errors import BadInput
from floodplain.pipeline.pyspark_renames import OUTPUT
from floodplain.plan.nodes import Extend, Keyed, Select, Transform

if TYPE_CHECKING:
    from floodplain.pipeline.stream import Output, Stream

CHECKPOINT = "checkpointLocation"
_TEMPORARY_STATE_ALLOWED = ("memory", "console", "foreachBatch")
"""Sinks for which Spark accepts a query without a checkpoint location, and uses a temporary one."""


class StreamWriter:
    """Spark's ``DataStreamWriter`` for a ``Stream``. ``start`` returns a ``Query``."""

    def __init__(self, stream: "Stream") -> None:
        self._stream = stream
        self._format = "parquet"
        self._options: dict[str, Any] = {}
        self._trigger: Any = None
        self._name: str | None = None
        self._function: Callable[[Any, int], None] | None = None

    def format(self, source: str) -> "StreamWriter":
        self._format = source
        return self

    def option(self, key: str, value: Any) -> "StreamWriter":
        self._options[key] = value
        return self

    def options(self, **options: Any) -> "StreamWriter":
        self._options.update(options)
        return self

    def partitionBy(self, *cols: Any) -> "StreamWriter":
        return self.option("partition_by", list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else list(cols))

    def trigger(self, **trigger: Any) -> "StreamWriter":
        self._trigger = {kind: value for kind, value in trigger.items() if value is not None}
        return self

    def foreachBatch(self, func: Callable[[Any, int], None]) -> "StreamWriter":
        self._function, self._format = func, "foreachBatch"
        return self

    def outputMode(self, outputMode: str) -> "StreamWriter":
        """Raises ``BadInput`` unless it is the mode of the stream, which its operators determine."""
        mode = _mode_of(self._stream)
        if outputMode.lower() != mode:
            raise BadInput(f"outputMode({outputMode!r}): the output of this stream has mode {mode!r}: {OUTPUT['outputMode']}")
        return self

    def queryName(self, queryName: str) -> "StreamWriter":
        self._name = queryName
        return self

    def foreach(self, f: Any) -> "StreamWriter":  # noqa: ARG002
        raise BadInput(f"writeStream.foreach: {OUTPUT['foreach']}")

    def clusterBy(self, *cols: Any) -> "StreamWriter":  # noqa: ARG002
        raise BadInput(f"writeStream.clusterBy: {OUTPUT['clusterBy']}")

    def toTable(self, tableName: str, *args: Any, **options: Any) -> Any:  # noqa: ARG002
        raise BadInput(f"writeStream.toTable({tableName!r}): {OUTPUT['toTable']}")

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 — as Spark calls it
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Any:
        """Run it on the state at ``checkpointLocation``; returns a ``Query``."""
        self.options(**options)
        for value, setter in ((format, self.format), (outputMode, self.outputMode), (queryName, self.queryName)):
            if value is not None:
                setter(value)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if path is not None:
            self.option("path", path)
        state = self._options.pop(CHECKPOINT, None)
        if state is None and self._format in _TEMPORARY_STATE_ALLOWED:
            state = tempfile.mkdtemp(prefix="floodplain-temporary-")
        if state is None:
            raise BadInput(
                f"writeStream: the location of the state is missing: call option({CHECKPOINT!r}, …), or write(…).start(state=…)"
            )
        return self._output().start(state=state, trigger=self._trigger, name=self._name)

    def _output(self) -> "Output":
        if self._function is not None:
            return self._stream.foreach_batch(self._function)
        return self._stream.write(self._format, **self._options)


def _mode_of(stream: "Stream") -> str:
    """The output mode of the last operator; ``append`` if there is none."""
    node = stream.node
    while isinstance(node, Transform | Select | Extend):
        node = node.parent
    if not isinstance(node, Keyed):
        return "append"
    rules = getattr(node.process, "rules", None)
    early = getattr(rules, "early", None) is not None
    return str(getattr(node.process, "mode", "update" if early else "append"))
