"""The format ``floodplain-state-metadata``: the operators of a query, with the columns of Spark's ``state-metadata``."""

from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from floodplain.spark.state_reader.batches import batch_of, last_epoch, read_epoch
from floodplain.spark.state_reader.options import BATCH_ID, DEFAULT_STORE, location_of, whole_number
from floodplain.spark.state_reader.planning import absolute, opened, partitions_of
from floodplain.spark.state_reader.variables import operators_of
from floodplain.store.store import Store

NAME = "floodplain-state-metadata"
SCHEMA = (
    StructType()
    .add("operatorId", LongType())
    .add("operatorName", StringType())
    .add("stateStoreName", StringType())
    .add("numPartitions", IntegerType())
    .add("minBatchId", LongType())
    .add("maxBatchId", LongType())
    .add("operatorProperties", StringType())
)


class StateMetadataSource(DataSource):
    """One row per stateful operator."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return StateMetadataReader(self.options)


class StateMetadataReader(DataSourceReader):
    """As in Spark, it reads when an action runs, not when the DataFrame is made."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        location, self._access = location_of(options)
        self._location = absolute(location)
        self._batch = whole_number(options, BATCH_ID)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        with opened(self._location, self._access) as store:
            yield from metadata(store, self._location, self._batch)


def metadata(store: Store, location: str, batch: int | None) -> Iterator[tuple[Any, ...]]:
    """What a batch has of operators, by default the last committed one, or what the first is going to have."""
    head = store.history.refresh()
    last = last_epoch(head, location)
    marks = [mark.epoch for mark in head.epochs if mark.epoch <= last]
    first, newest = (batch_of(marks[0]), batch_of(marks[-1])) if marks else (-1, -1)
    manifest = head if batch is None and not marks else store.history.at(read_epoch(store, location, batch))
    for operator in operators_of(manifest):
        partitions = len(partitions_of(manifest, operator.name))
        yield operator.number, operator.shown, DEFAULT_STORE, partitions, first, newest, operator.properties
