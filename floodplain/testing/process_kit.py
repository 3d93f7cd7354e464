"""A test kit: drive a process function epoch by epoch, without Spark, with time in your hands."""

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
    check_ends,
    combined,
    fitted_process,
)
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.spill import Spill, run_buckets
from floodplain.operators.kernel.task_state import TaskLevel, put_task_values, task_values_at
from floodplain.runtime.resources import Resources
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.durations import to_ms
from floodplain.state.python_values import rows_in_form
from floodplain.state.tables import define
from floodplain.state.types import as_fields
from floodplain.state.value_check import table_of
from floodplain.store.store import Store
from floodplain.store.write.epoch import Epoch
from floodplain.store.write.task_writer import TaskWriter
from floodplain.versions.records.assignment import checked_slots, even, groups_of, slot_of_each_group, slots_of
from floodplain.versions.records.edit import GroupRanges

_kits = itertools.count()


class ProcessKit:
    """One process function on a store of its own.

    ``rows`` declares the input as Spark writes it, ``broadcast`` the broadcast input; ``keys`` names key columns. Each call of
    ``epoch`` is one committed epoch. Nothing moves but what you move: times are arguments. ``late``: rows that come too late
    are in ``sides["late"]``, with the reason. ``has_watermark``: whether there will be a watermark; there will if rows have an
    ``event_time``. Else event-time timers are refused until ``epoch`` is given one, as they are in a pipeline without.
    """

    def __init__(
        self,
        process: Process,
        *,
        rows: str,
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
    ) -> None:
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
        process = fitted_process(name, process, self._rows, keys, event_time)
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
        self._watermark_ms = NONE_MS
        self._resources = Resources()
        self.rescale(slots)
        self.dropped = DroppedRows()
        """Of all epochs."""
        self.warnings: tuple[str, ...] = ()
        """Of the last epoch."""
        self.sides: dict[str, list[dict[str, Any]]] = {}
        """The rows of each side output in the last epoch."""

    @property
    def late(self) -> int:
        """Rows that came too late, in all epochs."""
        return self.dropped.late

    @property
    def dead(self) -> int:
        """Dead letters, in all epochs."""
        return self.dropped.dead

    @property
    def early(self) -> int:
        """Rows that in-order operators released before the watermark passed them, in all epochs."""
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
        now_ms: int = 0,
    ) -> list[dict[str, Any]]:
        """Process rows at these times and commit; returns the output rows, slot by slot."""
        table = self._given("rows", rows, self._rows)
        watermark_ms = self._watermark_ms if watermark_ms is None else max(watermark_ms, self._watermark_ms)
        if watermark_ms > NONE_MS and not self.operator.has_watermark:
            self.operator = replace(self.operator, has_watermark=True)
        if not self.operator.has_watermark:
            check_ends(self.operator.name, self.operator.process)
        times = EpochTimes(processing_ms=now_ms, late_ms=self._watermark_ms, watermark_ms=watermark_ms)
        watermarks = {EVENT_TIME: watermark_ms} if watermark_ms > NONE_MS else {}
        epoch = self.writer.epoch(now_ms=now_ms, watermarks=watermarks)
        outcome = self._run(epoch, times, table, self._given("broadcast rows", broadcast, self._broadcast))
        self._watermark_ms = watermark_ms
        self.dropped += outcome.dropped
        self.warnings = outcome.warnings
        self.sides = {side: rows_in_form(found) for side, found in outcome.sides.items()}
        return rows_in_form(outcome.output)

    def _given(self, what: str, rows: Sequence[Mapping[str, Any]] | pa.Table, schema: pa.Schema) -> pa.Table:
        return rows if isinstance(rows, pa.Table) else table_of(list(rows), schema, f"operator {self.operator.name}, {what}")

    def _run(self, epoch: Epoch, times: EpochTimes, rows: pa.Table, broadcast: pa.Table) -> Outcome:
        operator, snapshot, key_groups = self.operator, self.store.snapshot(), self.store.head.key_groups
        groups = groups_of(even(self.slots, key_groups, 1), key_groups)
        given = task_values_at(snapshot, operator, self.slots)
        spill = Spill(self._settings.epoch_bytes, Path(tempfile.gettempdir()), key_groups, list(operator.keys))
        outcomes, reports = [], []
        resource = self._resources.of(operator, self.store.head.store, self.writer.token)
        for slot, found in enumerate(self._by_slot(rows, groups, key_groups)):
            level = TaskLevel(operator, snapshot, slot=slot, values=given.of(slot), broadcast=broadcast, resource=resource)
            buckets = spill.buckets(found.to_batches(), found.schema, groups[slot])
            outcome, report = run_buckets(operator, snapshot, times, buckets, level, partial(_writer, epoch, operator.name, slot))
            outcomes.append(outcome)
            reports.append(report)
        put_task_values(epoch, operator, given, {slot: outcome.task_values for slot, outcome in enumerate(outcomes)})
        epoch.commit(reports)
        return combined(outcomes)

    def _by_slot(self, rows: pa.Table, groups: tuple[GroupRanges, ...], key_groups: int) -> list[pa.Table]:
        if self.slots == 1:
            return [rows]
        hashes = hashes_of(rows, normalize_keys([rows.column(name) for name in self.operator.keys]))
        slot_of_row = slots_of(hashes, slot_of_each_group(groups, key_groups))
        return [rows.filter(pa.array(slot_of_row == slot)) for slot in range(self.slots)]

    def close(self) -> None:
        """The process that runs the tasks ends: what ``open`` returned is closed. A further epoch opens it anew."""
        self._resources.close()

    def state(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of one of the operator's tables, by default that of its values."""
        return rows_in_form(self.store.snapshot().table(table or self.operator.name).to_arrow())


def _writer(epoch: Epoch, operator: str, slot: int, bucket: int) -> TaskWriter:
    return epoch.task(operator, f"{slot}-{bucket}")
