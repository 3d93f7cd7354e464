"""Windows one row at a time, in plain Python: what the vectorised ones are compared with."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from floodplain.eventtime.windows import SessionWindows, TimeWindows, Trigger
from floodplain.operators.windows.triggers import Rules

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = -(1 << 62)


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


@dataclass
class Window:
    key: Any
    start: int
    end: int
    rows: list[tuple[int, Any]] = field(default_factory=list)
    unfired: int = 0
    added: int = 0
    closed: bool = False
    shown: Any = None


def result(window: Window, rows: list[tuple[int, Any]]) -> tuple:
    values = [value for _, value in rows if value is not None]
    last = max(rows, key=lambda row: (row[0], row[1] is not None, row[1] or 0))[1] if rows else None
    return (
        *(window.key, at(window.start), at(window.end), len(rows), sum(values) if values else None),
        *(max(values) if values else None, last, tuple(sorted(values, reverse=True)[:2]), len(set(values))),
    )


class Model:
    """Follows the rules that users are told, and shares no code with what it checks."""

    def __init__(self, windows: Any, rules: Rules) -> None:
        self.windows, self.rules = windows, rules
        self.held: list[Window] = []
        self.late = 0
        self.wm = self.late_ms = NEVER
        self.ticks: dict[Any, set[int]] = {}

    def epoch(self, rows: list[tuple[Any, int, Any]], wm: int, now: int) -> Counter:
        self.late_ms, self.wm = self.wm, max(self.wm, wm or NEVER)
        out: Counter = Counter()
        for window in self.held:
            window.added = 0
        if isinstance(self.windows, SessionWindows):
            self._sessions(rows, out)
        else:
            self._assign(rows)
        for window in list(self.held):
            self._fire(window, out, now)
            if window.end + self.rules.lateness_ms <= self.wm:
                self.held.remove(window)
        self._set_ticks(now)
        return out

    def _assign(self, rows: list[tuple[Any, int, Any]]) -> None:
        windows: TimeWindows = self.windows
        for key, ms, value in rows:
            start = (ms - windows.offset_ms) // windows.slide_ms * windows.slide_ms + windows.offset_ms
            if start + windows.size_ms + self.rules.lateness_ms <= self.late_ms:
                self.late += 1
                continue
            while start + windows.size_ms > ms:
                if start + windows.size_ms + self.rules.lateness_ms > self.late_ms:
                    self._add(self._window(key, start, start + windows.size_ms), ms, value)
                start -= windows.slide_ms

    def _window(self, key: Any, start: int, end: int) -> Window:
        for window in self.held:
            if (window.key, window.start, window.end) == (key, start, end):
                return window
        self.held.append(Window(key, start, end))
        return self.held[-1]

    def _add(self, window: Window, ms: int, value: Any) -> None:
        window.rows.append((ms, value))
        window.unfired += 1
        window.added += 1

    def _sessions(self, rows: list[tuple[Any, int, Any]], out: Counter) -> None:
        gap = self.windows.gap_ms
        touched = []
        for key, ms, value in rows:
            if ms + gap + self.rules.lateness_ms <= self.late_ms:
                self.late += 1
                continue
            window = Window(key, ms, ms + gap)
            self._add(window, ms, value)
            touched.append(window)
        self.held = self._merged(sorted(self.held + touched, key=lambda w: (w.key, w.start, w not in self.held)), out)

    def _merged(self, windows: list[Window], out: Counter) -> list[Window]:
        found: list[Window] = []
        for window in windows:
            if not (found and found[-1].key == window.key and window.start <= found[-1].end):
                found.append(window)
                continue
            into = found[-1]
            into.end = max(into.end, window.end)
            into.rows += window.rows
            into.unfired += window.unfired
            into.added += window.added
            into.closed = (into.closed or window.closed) and into.end <= self.late_ms
            if window.shown is not None and into.shown is not None:
                out[(*window.shown, -1)] += 1
            into.shown = into.shown or window.shown
        return found

    def _ripe(self, trigger: Trigger | None, window: Window, now: int) -> bool:
        if trigger is None:
            return False
        if trigger.interval_ms:
            if trigger.clock == "event":
                crossed = self.late_ms // trigger.interval_ms < self.wm // trigger.interval_ms
            else:
                crossed = any(tick <= now and tick % trigger.interval_ms == 0 for tick in self.ticks.get(window.key, ()))
            return window.unfired > 0 and crossed
        return window.added > 0 and window.unfired >= trigger.rows

    def _fire(self, window: Window, out: Counter, now: int) -> None:
        reached = window.end <= self.wm
        first = reached and not window.closed
        fires = first or (window.unfired > 0 and window.end + self.rules.lateness_ms <= self.wm)
        fires = fires or self._ripe(self.rules.late if reached else self.rules.early, window, now)
        window.closed = reached
        if not fires or (self.rules.firing == "discarding" and not window.unfired):
            return
        made = result(window, window.rows)
        window.unfired = 0
        if self.rules.firing == "retracting":
            if made != window.shown:
                if window.shown is not None:
                    out[(*window.shown, -1)] += 1
                out[(*made, 1)] += 1
            window.shown = made
        else:
            out[made] += 1
            if self.rules.firing == "discarding":
                window.rows = []

    def _set_ticks(self, now: int) -> None:
        self.ticks = {key: {tick for tick in ticks if tick > now} for key, ticks in self.ticks.items()}
        for window in self.held:
            trigger = self.rules.late if window.end <= self.wm else self.rules.early
            if trigger is not None and trigger.interval_ms and trigger.clock == "processing" and window.unfired:
                self.ticks.setdefault(window.key, set()).add((now // trigger.interval_ms + 1) * trigger.interval_ms)


def script(seed: int, epochs: int = 12, rows: int = 40, spread_ms: int = 30_000) -> list[tuple[list, int, int]]:
    """Rows out of order over several epochs, with the watermark and the processing time of each; the last ends everything."""
    rng = np.random.default_rng(seed)
    found, wm = [], 0
    for number in range(epochs):
        middle = number * 7_000
        times = np.clip(middle + rng.integers(-spread_ms, spread_ms // 3, rows), 0, None)
        keys = np.array(["a", "b", "c", "d", "e"])[rng.integers(0, 5, rows)]
        values = [None if v < 1 else int(v) for v in rng.integers(0, 9, rows)]
        wm = max(wm, middle - int(rng.integers(0, 12_000)))
        found.append((list(zip(keys.tolist(), times.tolist(), values, strict=True))[: rng.integers(0, rows)], wm, number * 900))
    return [*found, ([], 1 << 40, epochs * 900)]
