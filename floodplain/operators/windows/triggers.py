"""Triggers: when windows fire, and the rows that a firing emits."""

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
from floodplain.operators.kernel.definition import ParameterSpec, not_less
from floodplain.operators.windows.open_windows import OpenWindows
from floodplain.state.durations import duration
from floodplain.structs import fields_of

START, END = "window_start", "window_end"


@dataclass(frozen=True)
class Rules:
    """Lateness, triggers and firing mode of a window operator."""

    lateness_ms: int = 0
    early: Trigger | None = None
    late: Trigger = EACH_EPOCH
    firing: Firing = "accumulating"

    before: tuple[tuple[int, int], ...] = ()
    """Shorter lateness from before a change of the job: up to which watermark, and how much."""

    def described(self) -> tuple[ParameterSpec, ...]:
        early = "" if self.early is None else f"early results {self.early}"
        late = "" if self.late.each_epoch else f"late results {self.late}"
        return (
            ParameterSpec("lateness", self.lateness_ms, f"lateness {duration(self.lateness_ms)}", not_less),
            ParameterSpec("early", None if self.early is None else asdict(self.early), early),
            ParameterSpec("late", asdict(self.late), late),
            ParameterSpec("firing", self.firing, self.firing),
        )

    def late_cutoff_ms(self, watermark_ms: int) -> int:
        """Windows that ended then or before are expired at this watermark. Where lateness has grown, those that had expired under
        the shorter one stay expired."""
        return late_cutoff_ms(watermark_ms, self.lateness_ms, self.before)

    @property
    def counted(self) -> bool:
        """Whether the number of rows since the last firing must be stored."""
        each_epoch = self.early is None or self.early.each_epoch
        return not (each_epoch and self.late.each_epoch) or self.firing == "discarding"

    @property
    def plain(self) -> bool:
        """Whether a window fires once at its end with all its rows, and again only for late rows."""
        return self.early is None and self.late.each_epoch and self.firing == "accumulating"

    @property
    def ticks(self) -> list[Trigger]:
        return [trigger for trigger in (self.early, self.late) if trigger is not None and trigger.interval_ms]

    def fires(self, windows: OpenWindows, due: "DueTriggers", ctx: BatchContext) -> np.ndarray:
        """Which windows fire now."""
        reached = windows.end <= ctx.watermark_ms
        first = reached & (due.ended | ~windows.stored)
        again = (windows.unfired > 0) & (windows.end + self.lateness_ms <= ctx.watermark_ms)
        early = self._ripe(self.early, windows, due.early) & ~reached
        late = self._ripe(self.late, windows, due.late) & reached & ~first
        fires: np.ndarray = first | again | early | late
        return fires & (windows.unfired > 0) if self.firing == "discarding" else fires

    def _ripe(self, trigger: Trigger | None, windows: OpenWindows, ticked: np.ndarray) -> np.ndarray:
        if trigger is None:
            return np.zeros(len(windows.end), bool)
        if trigger.interval_ms:
            return ticked & (windows.unfired > 0)
        return (windows.unfired >= trigger.rows) & (windows.added > 0)


def trigger_rules(lateness_ms: int, early: Trigger | None, late: Trigger, firing: Firing) -> Rules:
    """The rules that the arguments of ``window`` ask for. Raises for invalid ones, and for those without an effect."""
    if early is not None:
        check_trigger("early", early)
    check_trigger("late", late)
    if late != EACH_EPOCH and not lateness_ms:
        raise BadInput("window: late= is for rows that arrive within lateness=, and that is 0: set a lateness, too")
    return Rules(lateness_ms, early, late, firing)


@dataclass(frozen=True)
class DueTriggers:
    """Which triggers of which windows are due in an epoch."""

    ended: np.ndarray
    """Windows whose end timer is due."""
    early: np.ndarray
    late: np.ndarray
    """Windows of keys for which an interval of this trigger has passed."""

    @staticmethod
    def of(rules: Rules, ended: np.ndarray, timers: pa.Table, key_of: np.ndarray, ctx: BatchContext) -> "DueTriggers":
        """``timers`` are due; ``key_of``: the key of each window."""
        return DueTriggers(ended, *(_ticked(trigger, timers, key_of, ctx) for trigger in (rules.early, rules.late)))


def _ticked(trigger: Trigger | None, due: pa.Table, key_of: np.ndarray, ctx: BatchContext) -> np.ndarray:
    """Whether an interval has passed: of event time for all keys at once, of processing time by the timers of the key."""
    if trigger is None or not trigger.interval_ms:
        return np.zeros(len(key_of), bool)
    if trigger.clock == "event":
        return np.full(len(key_of), ctx.late_ms // trigger.interval_ms < ctx.watermark_ms // trigger.interval_ms)
    mine = pc.equal(due.column("clock"), "processing").to_numpy()
    times, of = due.column("time").to_numpy()[mine], due.column("key_of").to_numpy()[mine]
    return np.isin(key_of, of[times % trigger.interval_ms == 0])


def set_ticks(rules: Rules, batch: Batch, windows: OpenWindows, open_: np.ndarray, ctx: BatchContext) -> None:
    """Sets timers at the end of the interval for keys whose windows have rows since the last firing."""
    reached = windows.end <= ctx.watermark_ms
    for trigger, mask in ((rules.early, ~reached), (rules.late, reached)):
        if trigger is None or not trigger.interval_ms:
            continue
        keys = np.unique(windows.key_of[open_ & mask & (windows.unfired > 0)])
        now_ms = ctx.processing_time if trigger.clock == "processing" else max(ctx.watermark_ms, 0)
        at_ms = np.full(len(keys), (now_ms // trigger.interval_ms + 1) * trigger.interval_ms)
        (batch.processing_timer if trigger.clock == "processing" else batch.timer)(at_ms, keys)


class WindowResults:
    """The output rows of firings."""

    def __init__(self, aggregation: Aggregation, keys: dict[str, pa.DataType], time: pa.DataType, firing: Firing) -> None:
        """``keys``: the key columns of the output. ``time``: the type of ``window_start`` and ``window_end``."""
        self._aggregation, self._keys, self._time, self._firing = aggregation, keys, time, firing
        self._fields = [pa.field(START, time), pa.field(END, time), *aggregation.output]
        weight = [pa.field(WEIGHT, pa.int64())] if firing == "retracting" else []
        self.schema = pa.schema([pa.field(name, type_) for name, type_ in keys.items()] + self._fields + weight)

    @property
    def emitted(self) -> pa.DataType | None:
        """The type of the last result in the state; None without retractions."""
        return pa.struct(self._fields) if self._firing == "retracting" else None

    def of(self, batch: Batch, windows: OpenWindows, fires: np.ndarray) -> pa.Table:
        """The rows for the windows that fire. Updates their ``unfired`` and ``emitted``."""
        rows = np.flatnonzero(fires)
        columns = self._columns(windows, rows)
        windows.unfired[rows] = 0
        if windows.emitted is None:
            return self._rows(batch, windows.key_of[rows], columns)
        new = pa.StructArray.from_arrays(columns, fields=self._fields)
        before = windows.emitted.take(pa.array(rows))
        changed = ~same(before, new)
        choice = np.arange(len(windows.end))
        choice[rows] = len(choice) + np.arange(len(rows))
        windows.emitted = pa.concat_arrays([windows.emitted, new]).take(pa.array(choice))
        retracted = changed & before.is_valid().to_numpy(zero_copy_only=False)
        return pa.concat_tables(
            [
                self.weighted(batch, windows.key_of[rows[retracted]], before.filter(pa.array(retracted)), -1),
                self.weighted(batch, windows.key_of[rows[changed]], new.filter(pa.array(changed)), 1),
            ]
        )

    def weighted(self, batch: Batch, key_of: np.ndarray, results: pa.Array, weight: int) -> pa.Table:
        """Results as insertions or as retractions."""
        return self._rows(batch, key_of, [*fields_of(results), pa.repeat(pa.scalar(weight, pa.int64()), len(results))])

    def _columns(self, windows: OpenWindows, rows: np.ndarray) -> list[pa.Array]:
        taken = pa.array(rows)
        results = self._aggregation.results([column.take(taken) for column in windows.partials])
        columns = [*self._bounds(windows, rows), *results.values()]
        return [column.cast(field.type) for column, field in zip(columns, self._fields, strict=True)]

    def _bounds(self, windows: OpenWindows, rows: np.ndarray) -> list[pa.Array]:
        if windows.bounds_us is not None:
            return [timestamps(bound[rows], self._time, 1) for bound in windows.bounds_us]
        start, end = windows.start[rows], windows.end[rows]
        return [timestamps(times, self._time) for times in (np.where(end >= END_MS, NONE_MS, start), end)]

    def _rows(self, batch: Batch, key_of: np.ndarray, columns: list[pa.Array]) -> pa.Table:
        keys = batch.keys.take(pa.array(key_of)).columns[: len(self._keys)]
        return pa.Table.from_arrays([*keys, *columns], schema=self.schema)


def timestamps(times: np.ndarray, type_: pa.DataType, micros_each: int = 1000) -> pa.Array:
    """Times, in milliseconds by default, as a column; null for ``NONE_MS`` and ``END_MS``."""
    far = (times >= END_MS) | (times <= NONE_MS)
    micros = np.where(far, 0, times) * micros_each
    return pa.array(micros, mask=far if far.any() else None).cast(type_)
