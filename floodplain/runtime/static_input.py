"""Static input: its rows as one epoch, then one for the timers that are due when it is over."""

from collections.abc import Callable, Mapping
from typing import Any

from floodplain.eventtime.times import END_MS, NONE_MS
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.state.descriptors import EVENT_TIME
from floodplain.tiers.paths import BATCHES
from floodplain.versions.records.edit import SourcePosition

_ROWS, _DONE = "rows", "done"
"""How far a batch came: its rows are in the state, and its timers have fired."""


def run_static(
    epochs: EpochRunner, inputs: Mapping[str, Any], batch: str | None, newest_ms: Callable[[], int], *, finish: bool
) -> None:
    """Runs a static input. If its batch has a name, only what an interrupted earlier run has not committed is run.

    ``newest_ms``: the watermark by the rows, used if the plan has no watermark rule. ``finish``: all event-time timers fire.
    """
    noted = None if batch is None else epochs.store.head.source.sources.get(f"{BATCHES}{batch}")
    if noted == _DONE:
        return
    clock = epochs.store.history.clock
    if noted is None:
        epochs.run(inputs, _position(epochs, batch, _ROWS), clock.now_ms(), 0, ends=finish)
    watermark_ms = epochs.time.watermark_ms(newest_ms() if epochs.time.rule is None else 0, epochs.moment())
    fire_ms = END_MS if finish else watermark_ms
    if epochs.due(fire_ms, epochs.moment().now_ms):
        epochs.run(None, None, clock.now_ms(), watermark_ms, fire_ms, ends=finish)
    if batch is not None:
        reached_ms = epochs.store.head.watermarks.get(EVENT_TIME, NONE_MS)
        epochs.advance(clock.now_ms(), reached_ms, position=_position(epochs, batch, _DONE))


def _position(epochs: EpochRunner, batch: str | None, how_far: str) -> SourcePosition | None:
    """That of the stream, which stays, with a note of the batch."""
    if batch is None:
        return None
    before = epochs.store.head.source
    return SourcePosition(before.query_id, before.batch_id, before.offsets, {f"{BATCHES}{batch}": how_far})
