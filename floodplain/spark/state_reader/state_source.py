"""The format ``floodplain-statestore``: the state of a query, with the options and columns of Spark's ``statestore``."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from floodplain.errors import BadInput, Refused
from floodplain.spark.state_reader.changes import ChangeFeed
from floodplain.spark.state_reader.planning import StateRead, opened, planned
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.store import Store
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.retention.pins import Pin, PinRecord, pin, share

NAME = "floodplain-statestore"


class StateStoreSource(DataSource):
    """One variable, or all values, of one operator at one batch; or what batches changed.

    The batch is chosen when the DataFrame is made. From the planning of an action on, the epochs that it reads are pinned.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read = planned(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return self._read.shape.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != self.schema():
            raise BadInput(f"{NAME} has a schema of its own: leave schema(…) out, and select from what it gives")
        return StateStoreReader(self._read)


@dataclass
class StatePartition(InputPartition):
    """The key groups of one slot."""

    slot: int
    groups: GroupRanges
    pins: tuple[PinRecord, ...]
    """Of the epochs that are read, in order. None where the store cannot be written to."""


class StateStoreReader(DataSourceReader):
    def __init__(self, read: StateRead) -> None:
        self._read = read

    def partitions(self) -> list[InputPartition]:
        with opened(self._read.location, self._read.access) as store:
            pins = _pinned(store, self._read.epochs)
        return [StatePartition(slot, groups, pins) for slot, groups in self._read.slots]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StatePartition)
        with opened(self._read.location, self._read.access) as store:
            held = [share(store.history, record) for record in partition.pins]
            part = _Partition(store, self._read, partition, held)
            yield from part.changes() if self._read.shape.changes else part.state()


class _Partition:
    """One partition while it is read."""

    def __init__(self, store: Store, read: StateRead, partition: StatePartition, held: list[Pin]) -> None:
        self._store, self._read, self._partition, self._held = store, read, partition, held

    def state(self) -> Iterator[pa.RecordBatch]:
        shape, slot = self._read.shape, self._partition.slot
        pieces = self._pieces()
        if shape.collected:
            # A key may be spread over pieces.
            pieces = iter([pa.concat_tables(some)] if (some := list(pieces)) else [])
        for rows in pieces:
            batch = shape.rows(rows, slot)
            if len(batch):
                yield batch

    def _pieces(self) -> Iterator[pa.Table]:
        held = self._held[0] if self._held else None
        manifest = self._manifests()[0]
        view = Snapshot(manifest, self._store.open_runs, self._store.history, held).stored(self._read.shape.variable.table)
        for rows in view.scan(groups=self._partition.groups, expiries=True) if self._partition.groups else ():
            self._keep()
            yield rows

    def changes(self) -> Iterator[pa.RecordBatch]:
        manifests = self._manifests()
        schema = manifests[-1].schema(self._read.shape.variable.table)
        assert schema is not None
        if self._read.first_epoch == 1:
            head = self._store.head
            manifests = [Manifest(head.store, head.key_groups), *manifests]
        feed = ChangeFeed(self._store, self._read.shape, schema, self._partition.slot, self._partition.groups)
        for older, newer in pairwise(manifests):
            for batch in feed.between(older, newer):
                self._keep()
                yield batch

    def _manifests(self) -> list[Manifest]:
        if self._held:
            return [held.manifest for held in self._held]
        return [self._store.history.at(epoch) for epoch in self._read.epochs]

    def _keep(self) -> None:
        for held in self._held:
            held.keep()


def _pinned(store: Store, epochs: list[int]) -> tuple[PinRecord, ...]:
    """Pins for all tasks of an action. None where nothing can be written: a read may then find its epoch expired."""
    try:
        return tuple(pin(store.history, epoch).record for epoch in epochs)
    except Refused:
        return ()
