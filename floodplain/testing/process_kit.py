"""A test kit: runs a process function or a ``StatefulProcessor`` epoch by epoch, without Spark, with times as arguments."""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS, EpochTimes
from floodplain.keys import normalize_keys
from floodplain.operators.kernel.event_order import InOrder
from floodplain.operators.kernel.key_grouping import hashes_of
from floodplain.operators.kernel.late_rows import late_columns
from floodplain.operators.kernel.operator import (
    DroppedRows,
    KeyedOperator,
    OnError,
    Outcome,
    bind_process,
    check_ends,
    combined,
)
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.spill import Spill, run_buckets
from floodplain.operators.kernel.task_state import TaskLevel, put_task_values, task_values_at
from floodplain.runtime.resources import Resources
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.durations import to_ms
from floodplain.state.python_values import user_rows
from floodplain.state.tables import define
from floodplain.state.types import as_fields
from floodplain.state.value_check import table_of
from floodplain.store.store import Store
from floodplain.store.write.epoch import Epoch
from floodplain.store.write.task_writer import TaskWriter
from floodplain.testing.stateful_processor import Columns, SparkOptions, StatefulProcessor, as_dicts, bound_to
from floodplain.versions.log.commit import commit
from floodplain.versions.records.assignment import checked_slots, even, groups_of, slot_of_each_group, slots_of
from floodplain.versions.records.edit import GroupRanges, PutDefinition

_kits = itertools.count()


class ProcessKit:
    """One process function on a store of its own.

    ``rows`` declares the input columns as Spark DDL, ``broadcast`` those of the broadcast input; ``keys`` names the key columns.
    Each call of ``epoch`` runs and commits one epoch. Time only advances by its arguments. ``late``: late rows are in
    ``sides["late"]``, with the drop reason. ``has_watermark``: whether there will be a watermark; by default, if there is an
    ``event_time``. Without one, event-time timers are refused, as in a pipeline, until ``epoch`` gets a ``watermark_ms``.

    A ``StatefulProcessor`` of PySpark is given as it is, with what ``transformWithState`` would be told: the columns of its
    ``output`` and its ``time_mode``; ``pandas`` if it is written for ``transformWithStateInPandas``, the columns of the
    ``initial_state``, and the column of the output that has its event time (``output_time``). Columns may be a ``StructType``.
    """

    def __init__(
        self,
        process: Process | StatefulProcessor,
        *,
        rows: Columns,
        keys: Sequence[str],
        event_time: str | None = None,
        has_watermark: bool | None = None,
        broadcast: str | None = None,
        slots: int = 1,
        name: str = "kit",
        on_error: OnError = "raise",
        late: bool = False,
        in_order: InOrder | None = None,
        lateness: str | timedelta = "0 seconds",
        location: str | None = None,
        settings: StoreSettings | None = None,
        output: Columns | None = None,
        time_mode: str = "None",
        pandas: bool = False,
        initial_state: Columns | None = None,
        output_time: str | None = None,
    ) -> None:
        options = SparkOptions(output, time_mode, pandas, initial_state, output_time)
        process, rows, self._stateful = bound_to(process, rows, keys, event_time, options)
        self._rows = pa.schema(as_fields(rows).items())
        self._broadcast = pa.schema(as_fields(broadcast).items() if broadcast else {})
        self._settings = settings or StoreSettings(key_groups=16)
        self._clock = ManualClock(0)
        randomness = SeededRandomness(7)
        self.store = Store.open(
            location or f"memory://kit-{next(_kits)}",
            create=True,
            settings=self._settings,
            clock=self._clock,
            randomness=randomness,
        )
        self.writer = self.store.writer("kit", force=True)
        process = bind_process(name, process, self._rows, keys, event_time)
        self.operator = KeyedOperator(
            name,
            process,
            {key: self._rows.field(key).type for key in keys},
            event_time,
            on_error=on_error,
            late=late_columns(name, self._rows) if late else None,
            in_order=None if in_order is None else replace(in_order, columns=self._rows),
            lateness_ms=to_ms(lateness, "lateness"),
            has_watermark=event_time is not None if has_watermark is None else has_watermark,
        )
        define(self.writer, self.operator.tables)
        definition = self.operator.traits.described(str).recorded
        if definition.spark is not None:
            commit(self.store.history, [PutDefinition(name, definition)], token=self.writer.token)
        self._watermark_ms = NONE_MS
        self._now_ms = 0
        self._resources = Resources()
        self.rescale(slots)
        self.dropped = DroppedRows()
        """Dropped rows by drop reason, in all epochs."""
        self.warnings: tuple[str, ...] = ()
        """Warnings of the last epoch."""
        self.sides: dict[str, list[dict[str, Any]]] = {}
        """The rows of each side output in the last epoch."""

    @property
    def late(self) -> int:
        """Number of late rows, in all epochs."""
        return self.dropped.late

    @property
    def dead(self) -> int:
        """Number of dead letters, in all epochs."""
        return self.dropped.dead

    @property
    def early(self) -> int:
        """Number of rows that in-order operators released before the watermark passed them, in all epochs."""
        return self.dropped.early

    def rescale(self, slots: int) -> None:
        """Use this many slots from the next epoch on."""
        self.slots = checked_slots(slots, self.store.head.key_groups)

    def epoch(
        self,
        rows: Sequence[Mapping[str, Any]] | pa.Table = (),
        *,
        broadcast: Sequence[Mapping[str, Any]] = (),
        watermark_ms: int | None = None,
        now_ms: int | None = None,
        initial_state: Sequence[Mapping[str, Any]] | pa.Table = (),
    ) -> list[dict[str, Any]]:
        """Process rows at these times and commit; returns the output rows, slot by slot.

        A time that is not given stays. ``initial_state``: that of a ``StatefulProcessor``, with the first epoch.
        """
        table = self._table("rows", rows, self._rows)
        if len(initial_state):
            table = self._with_initial_state(table, initial_state)
        watermark_ms = self._watermark_ms if watermark_ms is None else max(watermark_ms, self._watermark_ms)
        now_ms = self._now_ms if now_ms is None else now_ms
        if watermark_ms > NONE_MS and not self.operator.has_watermark:
            self.operator = replace(self.operator, has_watermark=True)
        if not self.operator.has_watermark:
            check_ends(self.operator.name, self.operator.process)
        times = EpochTimes(processing_ms=now_ms, late_ms=self._watermark_ms, watermark_ms=watermark_ms)
        outcome = self._run(self.operator, times, table, self._table("broadcast rows", broadcast, self._broadcast))
        self._watermark_ms, self._now_ms = watermark_ms, now_ms
        self.dropped += outcome.dropped
        self.warnings = outcome.warnings
        self.sides = {side: user_rows(of_side) for side, of_side in outcome.sides.items()}
        return user_rows(outcome.output)

    def _table(self, what: str, rows: Sequence[Mapping[str, Any]] | pa.Table, schema: pa.Schema) -> pa.Table:
        return rows if isinstance(rows, pa.Table) else table_of(as_dicts(rows), schema, f"operator {self.operator.name}, {what}")

    def _with_initial_state(self, rows: pa.Table, states: Sequence[Mapping[str, Any]] | pa.Table) -> pa.Table:
        columns = None if self._stateful is None else self._stateful.initial
        if self._stateful is None or columns is None:
            raise BadInput("there is no initial state: give its columns to the kit of a StatefulProcessor, initial_state='…'")
        if self.store.head.epoch > 0:
            raise BadInput(f"the initial state comes with the first epoch, and {self.store.head.epoch} are committed already")
        return self._stateful.with_initial_state(rows, self._table("initial state", states, columns))

    def _run(
        self, operator: KeyedOperator, times: EpochTimes, rows: pa.Table, broadcast: pa.Table, *, commit: bool = True
    ) -> Outcome:
        watermarks = {EVENT_TIME: times.watermark_ms} if times.watermark_ms > NONE_MS else {}
        epoch = self.writer.epoch(now_ms=times.processing_ms, watermarks=watermarks)
        snapshot, key_groups = self.store.snapshot(), self.store.head.key_groups
        groups = groups_of(even(self.slots, key_groups, 1), key_groups)
        task_values = task_values_at(snapshot, operator, self.slots)
        spill = Spill(self._settings.epoch_bytes, Path(tempfile.gettempdir()), key_groups, list(operator.keys))
        outcomes, reports = [], []
        resource = self._resources.of(operator, self.store.head.store, self.writer.token)
        for slot, of_slot in enumerate(self._by_slot(rows, groups, key_groups)):
            level = TaskLevel(operator, snapshot, slot=slot, values=task_values.of(slot), broadcast=broadcast, resource=resource)
            buckets = spill.buckets(of_slot.to_batches(), of_slot.schema, groups[slot])
            outcome, report = run_buckets(operator, snapshot, times, buckets, level, partial(_writer, epoch, operator.name, slot))
            outcomes.append(outcome)
            reports.append(report)
        put_task_values(epoch, operator, task_values, {slot: outcome.task_values for slot, outcome in enumerate(outcomes)})
        if commit:
            epoch.commit(reports)
        return combined(outcomes)

    def _by_slot(self, rows: pa.Table, groups: tuple[GroupRanges, ...], key_groups: int) -> list[pa.Table]:
        if self.slots == 1:
            return [rows]
        hashes = hashes_of(rows, normalize_keys([rows.column(name) for name in self.operator.keys]))
        slot_of_row = slots_of(hashes, slot_of_each_group(groups, key_groups))
        return [rows.filter(pa.array(slot_of_row == slot)) for slot in range(self.slots)]

    def close(self) -> None:
        """End the task process: closes the resource that ``open`` returned. The next epoch opens it anew."""
        self._resources.close()

    def state(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of one of the operator's state tables; by default, the table of its values."""
        return user_rows(self.store.snapshot().table(table or self.operator.name).to_arrow())

    def peek(self, state: str, key: Any) -> Any:
        """What a state of a ``StatefulProcessor`` has for a key, as the processor would read it now.

        A tuple, or None if there is none; of a list state a list of tuples, of a map state a dict of tuples. Several key columns
        are given as a tuple.
        """
        return self._probed(self._probes().reading(state), key, commit=False)

    def update(self, state: str, key: Any, value: Any) -> None:
        """Set what a state of a ``StatefulProcessor`` has for a key (``value`` as ``peek`` gives it), in an epoch of its own."""
        self._probed(self._probes().writing(state, value), key)

    def delete(self, state: str, key: Any) -> None:
        """Clear a state of a ``StatefulProcessor`` for a key, in an epoch of its own."""
        self._probed(self._probes().clearing(state), key)

    def timers(self, key: Any) -> list[int]:
        """The timers that a ``StatefulProcessor`` has set for a key and that have not fired, by time."""
        return list(self._probed(self._probes().listing_timers(), key, commit=False))

    def _probes(self) -> Any:
        if self._stateful is None:
            raise BadInput("peek, update, delete and timers are for a StatefulProcessor: use state() here")
        return self._stateful

    def _probed(self, probe: Any, key: Any, *, commit: bool = True) -> Any:
        names, values = list(self.operator.keys), key if isinstance(key, tuple) else (key,)
        if len(names) != len(values):
            raise BadInput(f"key {key!r} has not the columns {', '.join(names)}: give several as a tuple")
        row = self._table("key", [dict(zip(names, values, strict=True))], self._rows)
        times = EpochTimes(processing_ms=self._now_ms, late_ms=self._watermark_ms, watermark_ms=self._watermark_ms)
        nothing = self._broadcast.empty_table()
        self._run(replace(self.operator, process=probe), times, row, nothing, commit=commit)
        return probe.answer


def _writer(epoch: Epoch, operator: str, slot: int, bucket: int) -> TaskWriter:
    return epoch.task(operator, f"{slot}-{bucket}")
