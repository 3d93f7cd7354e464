"""The watermark of a pipeline while it runs: Spark's, or by the pipeline's own rule from what is in the manifest."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import NONE_MS
from floodplain.eventtime.watermarks import NEWEST, SourceObservation, WatermarkRule, newest_of
from floodplain.runtime.engine import Engine
from floodplain.state.descriptors import EVENT_TIME
from floodplain.store.processing_time import Moment
from floodplain.store.rows.definition import value_table
from floodplain.store.store import Writer
from floodplain.store.write.epoch import Epoch


class WatermarkClock:
    """Knows the watermark of the next epoch, and what each epoch adds to it. Without a rule it only passes Spark's on."""

    def __init__(self, writer: Writer, rule: WatermarkRule | None, engine: Engine) -> None:
        self.rule = rule
        self._store = writer.store
        self._clock = writer.time
        self._engine = engine
        self._started_ms = self._clock.moment().now_ms
        self._seen: Callable[[], Mapping[str, SourceObservation]] = dict
        self.ignored = 0
        """Heartbeats of the last epoch that had other values, too."""

    def prepare(self, writer: Writer) -> None:
        if self.rule is not None and self.rule.counts_rows:
            writer.define(value_table(NEWEST, {"source": pa.string()}, {"times": pa.list_(pa.int64())}))

    def before(self, at: Moment) -> Mapping[str, int]:
        """The times of the epochs before. Those that go by processing time are no later than that, if it is set back."""
        times = self._store.head.watermarks
        if not at.set_back:
            return times
        by_clock = [name for name in times if self.rule is not None and self.rule.by_clock(name)]
        return {**times, **{name: min(times[name], at.now_ms - 1) for name in by_clock}}

    def watermark_ms(self, given_ms: int, at: Moment) -> int:
        """The watermark of an epoch at this time. ``given_ms``: what Spark says; 0 for nothing."""
        before = self.before(at)
        if self.rule is None:
            return max(given_ms or NONE_MS, before.get(EVENT_TIME, NONE_MS))
        return self.rule.watermark_ms(before, at.now_ms, self._started_ms)

    def timed(self, inputs: Mapping[str, Any] | None, now_ms: int) -> dict[str, Any] | None:
        """The inputs of an epoch as operators get them. What they show of their sources is kept for ``advance``."""
        self._seen = dict
        if inputs is None or self.rule is None:
            return None if inputs is None else dict(inputs)
        rows, self._seen = self._engine.measure(inputs[""], self.rule, now_ms)
        return {**inputs, "": rows}

    def advance(self, epoch: Epoch, at: Moment) -> dict[str, int]:
        """The times that this epoch, which began then, moves, for its commit. Requires: its jobs have run."""
        if self.rule is None:
            return {}
        seen, self._seen = self._seen(), dict
        self.ignored = sum(source.ignored for source in seen.values())
        if not seen:
            return {}
        now_ms = max(at.now_ms, self._clock.moment().now_ms)
        return self.rule.advanced(self.before(at), self._with_newest(epoch, seen), now_ms)

    def promised(self, source: str | None, at_ms: int, at: Moment) -> dict[str, int]:
        """The times that a heartbeat moves: all events of this source up to ``at_ms`` have come; of all, if none is named."""
        if self.rule is None or self.rule.ingestion:
            raise BadInput(
                "a heartbeat needs a watermark that is not Spark's own: give it an option, as in "
                "watermark('ts', '1 minute', idle='5 minutes')"
            )
        if source is not None and source not in self.rule.sources:
            raise BadInput(f"heartbeat: there is no source {source!r} with event time; there are: {', '.join(self.rule.sources)}")
        sources = self.rule.sources if source is None else [source]
        return self.rule.advanced(self.before(at), {name: SourceObservation(0, (), at_ms) for name in sources}, at.now_ms)

    def _with_newest(self, epoch: Epoch, seen: Mapping[str, SourceObservation]) -> dict[str, SourceObservation]:
        """The observations with the newest times of all epochs, for sources that need them. The times are written, too."""
        assert self.rule is not None
        if not self.rule.counts_rows:
            return dict(seen)
        recorded = self._store.snapshot().stored(NEWEST).to_arrow().to_pylist()
        held = {row["source"]: tuple(row["times"]) for row in recorded}
        counted = {source: slack.kept for source, slack in self.rule.sources.items() if slack.rows and seen[source].newest}
        newest = {source: newest_of(held.get(source, ()), seen[source].newest, kept) for source, kept in counted.items()}
        if newest:
            times = pa.array([list(times) for times in newest.values()], pa.list_(pa.int64()))
            epoch.put(NEWEST, pa.table({"source": list(newest), "times": times}))
        return {**seen, **{source: replace(seen[source], newest=times) for source, times in newest.items()}}
