"""When windows give results, and which rows say so."""

from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.eventtime.times import END_MS, NONE_MS, late_cutoff_ms
from floodplain.eventtime.windows import EACH_EPOCH, Firing, Trigger, check_trigger
from floodplain.operators.aggregates.aggregation import Aggregation
from floodplain.operators.changelog.changelog import WEIGHT, same
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import Given, not_less
from floodplain.operators.windows.open_windows import OpenWindows
from floodplain.state.durations import duration
from floodplain.structs import fields_of

START, END = "window_start", "window_end"


@dataclass(frozen=True)
class Rules:
    """What a user said of firings."""

    lateness_ms: int = 0
    early: Trigger | None = None
    late: Trigger = EACH_EPOCH
    firing: Firing = "accumulating"

    before: tuple[tuple[int, int], ...] = ()
    """Shorter lateness that there was before: up to which watermark, and how much."""

    def described(self) -> tuple[Given, ...]:
        early = "" if self.early is None else f"early results {self.early}"
        late = "" if self.late.each_epoch else f"late results {self.late}"
        return (
            Given("lateness", self.lateness_ms, f"lateness {duration(self.lateness_ms)}", not_less),
            Given("early", None if self.early is None else asdict(self.early), early),
            Given("late", asdict(self.late), late),
            Given("firing", self.firing, self.firing),
        )

    def late_cutoff_ms(self, watermark_ms: int) -> int:
        """Windows that ended then or before take no more rows at this watermark. Where lateness has grown since, those that had
        gone by then stay gone."""
        return late_cutoff_ms(watermark_ms, self.lateness_ms, self.before)

    @property
    def counted(self) -> bool:
        """Whether the number of rows since the last result must be kept."""
        each_epoch = self.early is None or self.early.each_epoch
        return not (each_epoch and self.late.each_epoch) or self.firing == "discarding"

    @property
    def plain(self) -> bool:
        """Whether each result holds all rows of its window, and only rows that come late make another."""
        return self.early is None and self.late.each_epoch and self.firing == "accumulating"

    @property
    def ticks(self) -> list[Trigger]:
        return [trigger for trigger in (self.early, self.late) if trigger is not None and trigger.interval_ms]

    def fires(self, held: OpenWindows, due: "DueTriggers", ctx: BatchContext) -> np.ndarray:
        """Which windows give a result now."""
        reached = held.end <= ctx.watermark_ms
        first = reached & (due.ended | ~held.stored)
        again = (held.unfired > 0) & (held.end + self.lateness_ms <= ctx.watermark_ms)
        early = self._ripe(self.early, held, due.early) & ~reached
        late = self._ripe(self.late, held, due.late) & reached & ~first
        fires: np.ndarray = first | again | early | late
        return fires & (held.unfired > 0) if self.firing == "discarding" else fires

    def _ripe(self, trigger: Trigger | None, held: OpenWindows, ticked: np.ndarray) -> np.ndarray:
        if trigger is None:
            return np.zeros(len(held.end), bool)
        if trigger.interval_ms:
            return ticked & (held.unfired > 0)
        return (held.unfired >= trigger.rows) & (held.added > 0)


def trigger_rules(lateness_ms: int, early: Trigger | None, late: Trigger, firing: Firing) -> Rules:
    """What the arguments of ``window`` mean. Raises for those that are none, or that would change nothing."""
    if early is not None:
        check_trigger("early", early)
    check_trigger("late", late)
    if late != EACH_EPOCH and not lateness_ms:
        raise BadInput("window: late= is for rows that come within lateness=, and that is 0: give a lateness, too")
    return Rules(lateness_ms, early, late, firing)


@dataclass(frozen=True)
class DueTriggers:
    """What the timers of an epoch mean for its windows."""

    ended: np.ndarray
    """Windows whose end was waited for."""
    early: np.ndarray
    late: np.ndarray
    """Windows of keys for which an interval of this trigger is over."""

    @staticmethod
    def of(rules: Rules, ended: np.ndarray, timers: pa.Table, key_of: np.ndarray, ctx: BatchContext) -> "DueTriggers":
        """``timers`` are due; ``key_of``: the key of each window."""
        return DueTriggers(ended, *(_ticked(trigger, timers, key_of, ctx) for trigger in (rules.early, rules.late)))


def _ticked(trigger: Trigger | None, due: pa.Table, key_of: np.ndarray, ctx: BatchContext) -> np.ndarray:
    """Whether an interval is over: of event time for all keys at once, of processing time as timers of the key say."""
    if trigger is None or not trigger.interval_ms:
        return np.zeros(len(key_of), bool)
    if trigger.clock == "event":
        return np.full(len(key_of), ctx.late_ms // trigger.interval_ms < ctx.watermark_ms // trigger.interval_ms)
    mine = pc.equal(due.column("clock"), "processing").to_numpy()
    times, of = due.column("time").to_numpy()[mine], due.column("key_of").to_numpy()[mine]
    return np.isin(key_of, of[times % trigger.interval_ms == 0])


def set_ticks(rules: Rules, batch: Batch, held: OpenWindows, open_: np.ndarray, ctx: BatchContext) -> None:
    """Wake the keys of windows that have rows without a result when their interval is over."""
    reached = held.end <= ctx.watermark_ms
    for trigger, mask in ((rules.early, ~reached), (rules.late, reached)):
        if trigger is None or not trigger.interval_ms:
            continue
        keys = np.unique(held.key_of[open_ & mask & (held.unfired > 0)])
        now_ms = ctx.processing_time if trigger.clock == "processing" else max(ctx.watermark_ms, 0)
        at_ms = np.full(len(keys), (now_ms // trigger.interval_ms + 1) * trigger.interval_ms)
        (batch.processing_timer if trigger.clock == "processing" else batch.timer)(at_ms, keys)


class WindowResults:
    """Windows that fired as rows."""

    def __init__(self, aggregation: Aggregation, keys: dict[str, pa.DataType], time: pa.DataType, firing: Firing) -> None:
        """``keys``: those that come out. ``time``: the type of ``window_start`` and ``window_end``."""
        self._aggregation, self._keys, self._time, self._firing = aggregation, keys, time, firing
        self._fields = [pa.field(START, time), pa.field(END, time), *aggregation.output]
        weight = [pa.field(WEIGHT, pa.int64())] if firing == "retracting" else []
        self.schema = pa.schema([pa.field(name, type_) for name, type_ in keys.items()] + self._fields + weight)

    @property
    def shown(self) -> pa.DataType | None:
        """The type of a result as the state keeps it, if it must."""
        return pa.struct(self._fields) if self._firing == "retracting" else None

    def of(self, batch: Batch, held: OpenWindows, fires: np.ndarray) -> pa.Table:
        """The rows for the windows that fire. What is shown and what is kept changes with it."""
        rows = np.flatnonzero(fires)
        columns = self._columns(held, rows)
        held.unfired[rows] = 0
        if held.shown is None:
            return self._rows(batch, held.key_of[rows], columns)
        made = pa.StructArray.from_arrays(columns, fields=self._fields)
        before = held.shown.take(pa.array(rows))
        changed = ~same(before, made)
        choice = np.arange(len(held.end))
        choice[rows] = len(choice) + np.arange(len(rows))
        held.shown = pa.concat_arrays([held.shown, made]).take(pa.array(choice))
        taken_back = changed & before.is_valid().to_numpy(zero_copy_only=False)
        return pa.concat_tables(
            [
                self.weighted(batch, held.key_of[rows[taken_back]], before.filter(pa.array(taken_back)), -1),
                self.weighted(batch, held.key_of[rows[changed]], made.filter(pa.array(changed)), 1),
            ]
        )

    def weighted(self, batch: Batch, key_of: np.ndarray, shown: pa.Array, weight: int) -> pa.Table:
        """WindowResults as rows that count, or as rows that take them back."""
        return self._rows(batch, key_of, [*fields_of(shown), pa.repeat(pa.scalar(weight, pa.int64()), len(shown))])

    def _columns(self, held: OpenWindows, rows: np.ndarray) -> list[pa.Array]:
        taken = pa.array(rows)
        results = self._aggregation.results([column.take(taken) for column in held.partials])
        columns = [*self._bounds(held, rows), *results.values()]
        return [column.cast(field.type) for column, field in zip(columns, self._fields, strict=True)]

    def _bounds(self, held: OpenWindows, rows: np.ndarray) -> list[pa.Array]:
        if held.bounds_us is not None:
            return [timestamps(bound[rows], self._time, 1) for bound in held.bounds_us]
        start, end = held.start[rows], held.end[rows]
        return [timestamps(times, self._time) for times in (np.where(end >= END_MS, NONE_MS, start), end)]

    def _rows(self, batch: Batch, key_of: np.ndarray, columns: list[pa.Array]) -> pa.Table:
        keys = batch.keys.take(pa.array(key_of)).columns[: len(self._keys)]
        return pa.Table.from_arrays([*keys, *columns], schema=self.schema)


def timestamps(times: np.ndarray, type_: pa.DataType, micros_each: int = 1000) -> pa.Array:
    """Times, in milliseconds if nothing else is said, as a column; null for the ends of time."""
    far = (times >= END_MS) | (times <= NONE_MS)
    micros = np.where(far, 0, times) * micros_each
    return pa.array(micros, mask=far if far.any() else None).cast(type_)
