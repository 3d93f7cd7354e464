"""A test kit: drive a process function epoch by epoch, without Spark, with time in your hands."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodplain.clock import ManualClock, SeededChance
from floodplain.eventtime.times import NONE_MS, EpochTimes
from floodplain.operators.keyed import KeyedTask
from floodplain.operators.operator import KeyedOperator, OnError
from floodplain.operators.process import Process
from floodplain.settings import StoreSettings
from floodplain.state.descriptors import EVENT_TIME
from floodplain.state.tables import define
from floodplain.state.types import as_fields
from floodplain.store.store import Store

_kits = itertools.count()


class ProcessKit:
    """One process function on a store of its own, as one slot.

    ``rows`` declares the input as Spark writes it; ``keys`` names its key columns. Each call of ``epoch`` is one committed
    epoch. Nothing moves but what you move: times are arguments.
    """

    def __init__(
        self,
        process: Process,
        *,
        rows: str,
        keys: Sequence[str],
        event_time: str | None = None,
        name: str = "kit",
        on_error: OnError = "raise",
        location: str | None = None,
        settings: StoreSettings | None = None,
    ) -> None:
        self._rows = pa.schema(as_fields(rows).items())
        self._clock = ManualClock(0)
        chance = SeededChance(7)
        self.store = Store.open(
            location or f"memory://kit-{next(_kits)}",
            create=True,
            settings=settings or StoreSettings(key_groups=16),
            clock=self._clock,
            chance=chance,
        )
        self.writer = self.store.writer("kit", force=True)
        self.operator = KeyedOperator(
            name, process, {key: self._rows.field(key).type for key in keys}, event_time, on_error=on_error
        )
        define(self.writer, self.operator.tables)
        self._watermark_ms = NONE_MS
        self.late = 0
        self.dead = 0
        self.sides: dict[str, list[dict[str, Any]]] = {}
        """The rows of each side output in the last epoch."""

    def epoch(
        self, rows: Sequence[Mapping[str, Any]] | pa.Table = (), *, watermark_ms: int | None = None, now_ms: int = 0
    ) -> list[dict[str, Any]]:
        """Process rows at these times and commit; returns the output rows."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), self._rows)
        watermark_ms = self._watermark_ms if watermark_ms is None else max(watermark_ms, self._watermark_ms)
        times = EpochTimes(processing_ms=now_ms, late_ms=self._watermark_ms, watermark_ms=watermark_ms)
        watermarks = {EVENT_TIME: watermark_ms} if watermark_ms > NONE_MS else {}
        epoch = self.writer.epoch(now_ms=now_ms, watermarks=watermarks)
        writer = epoch.task(self.operator.name, "0")
        groups = ((0, self.store.head.key_groups),)
        outcome = KeyedTask(self.operator, self.store.snapshot(), writer, times, groups).run(table)
        epoch.commit([writer.finish()])
        self._watermark_ms = watermark_ms
        self.late += outcome.late
        self.dead += outcome.dead
        self.sides = {side: found.to_pylist() for side, found in outcome.sides.items()}
        return outcome.output.to_pylist()

    def state(self, table: str | None = None) -> list[dict[str, Any]]:
        """The rows of one of the operator's tables, by default that of its values."""
        return self.store.snapshot().table(table or self.operator.name).to_arrow().to_pylist()
