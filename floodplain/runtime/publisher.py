"""Publishes what epochs have committed, under the lease, and deletes staged files that nobody needs any more."""

import threading
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from floodplain.plan.nodes import Outlet
from floodplain.runtime.compatibility.inherited_output import unpublished, vouched
from floodplain.runtime.engine import StateLocation
from floodplain.sinks.row_checks import SinkCheck
from floodplain.store.write.task_writer import conflict_before_damage
from floodplain.tier_use import PUBLISH, tallied
from floodplain.tiers import paths
from floodplain.versions.log.commit import commit
from floodplain.versions.log.requirements import RequireLease
from floodplain.versions.records.edit import AdvancePublished
from floodplain.versions.retention.garbage import old_staged


class Publisher:
    """Hands the staged output of the last committed epoch to the sinks, and records how far that got.

    The edit of an epoch names its own staged output only. So an epoch is published before the next one is committed; how far
    publishing got rides in the next edit, and staged files stay until then.
    """

    def __init__(self, place: StateLocation, outlets: Sequence[Outlet], *, deferred: bool = False) -> None:
        """``deferred``: discarded files are deleted when ``delete_discarded`` is called, and not at once."""
        self._deferred = deferred
        self._discarded: set[str] = set()
        self._lock = threading.Lock()
        self.store = place.store
        self.writer = place.writer
        self._outlets = tuple(outlets)
        self._schemas: Mapping[tuple[str, str], pa.Schema] = {}
        self._published = 0

    @property
    def staged_as(self) -> set[tuple[str, str]]:
        """The outputs that sinks read."""
        return {outlet.staged_as for outlet in self._outlets}

    def prepare(self, schemas: Mapping[tuple[str, str], pa.Schema]) -> dict[tuple[str, str], tuple[SinkCheck, ...]]:
        """Prepare the sinks for rows of these columns. Returns what they require of rows. Raises before a sink writes anything if
        one cannot take the columns."""
        self._schemas = schemas
        for outlet in self._outlets:
            outlet.sink.check(schemas[outlet.staged_as])
        self._prepare(self._outlets, schemas)
        return _row_checks(self._outlets, schemas)

    def checked(
        self, outlets: Sequence[Outlet], schemas: Mapping[tuple[str, str], pa.Schema]
    ) -> dict[tuple[str, str], tuple[SinkCheck, ...]]:
        """What sinks that may be in use already require of rows of other columns. Raises if one cannot take them."""
        for outlet in outlets:
            outlet.sink.check(schemas[outlet.staged_as])
        used = {id(outlet.sink) for outlet in self._outlets}
        self._prepare([outlet for outlet in outlets if id(outlet.sink) not in used], schemas)
        return _row_checks(outlets, schemas)

    def _prepare(self, outlets: Sequence[Outlet], schemas: Mapping[tuple[str, str], pa.Schema]) -> None:
        head = self.store.head
        for outlet in outlets:
            outlet.sink.prepare(f"{head.store}-{outlet.name}", head.epoch, schemas[outlet.staged_as])

    def adopt(self, outlets: Sequence[Outlet], schemas: Mapping[tuple[str, str], pa.Schema]) -> None:
        """Publish these outputs from now on. Requires: what was committed before is published, and ``checked`` raised nothing."""
        used, before = {id(outlet.sink) for outlet in outlets}, self._outlets
        self._outlets, self._schemas = tuple(outlets), schemas
        for outlet in before:
            if id(outlet.sink) not in used:
                outlet.sink.close()

    def publish(self) -> None:
        """Publish the last committed epoch unless that was done, under the lease.

        Raises ``Fenced`` if another driver took over, also if that one has published it: Spark must not note the batch as ours.
        Raises ``Corrupt`` if a staged file of any sink is not what the edit vouches for, before a sink is given one.
        """
        with tallied(self.store.counters.tally, PUBLISH):
            self.store.history.refresh()
            self._publish(None)

    def publish_committed(self, inline: Mapping[str, bytes] | None = None) -> None:
        """As ``publish``, right after the commit of the epoch: that has looked whether another driver took over.

        ``inline``: the output in its edit.
        """
        with tallied(self.store.counters.tally, PUBLISH):
            self._publish(inline)

    def _publish(self, inline: Mapping[str, bytes] | None) -> None:
        head = self.store.head
        RequireLease(self.writer.token).check(head)
        if max(head.published, self._published) >= head.epoch:
            return
        named, blobs = unpublished(head, self.staged_as), vouched(head, self.store.history.blobs, inline)
        with conflict_before_damage(self.store.history, [RequireLease(self.writer.token)]):
            blobs.check_all()
            for outlet in self._outlets:
                schema = self._schemas[outlet.staged_as]
                outlet.sink.publish(head.epoch, sorted(named[outlet.staged_as]), blobs, schema)
        self._published = head.epoch

    def publish_pending(self) -> None:
        """To be called before another epoch begins: what is not published when that is committed is lost."""
        if max(self.store.head.published, self._published) < self.store.head.epoch:
            self.publish()

    def unrecorded(self) -> list[AdvancePublished]:
        """How far publishing got, for the next edit, if the log does not tell yet."""
        return [AdvancePublished(self._published)] if self._published > self.store.head.published else []

    def published_files(self) -> Sequence[str]:
        """Staged files of the last epoch, if it is published: to be deleted once the log tells so."""
        return self.store.head.stored_outputs() if self._published == self.store.head.epoch else ()

    def record(self) -> None:
        """Have the log tell how far publishing got, in an edit of its own."""
        if updates := self.unrecorded():
            commit(self.store.history, updates, token=self.writer.token)

    def record_when_idle(self, now_ms: int) -> None:
        """As ``record``, once no epoch has come for a while, lest the next driver repeat it if this one dies."""
        head = self.store.head
        if self.unrecorded() and now_ms - head.epochs[-1].at_ms >= self.store.history.settings.lease_ms // 3:
            self.record()

    def sweep_staged(self) -> None:
        """Delete what attempts that did not count have staged, up to the epoch before the last. Any thread may call it.

        What is not published yet, as far as the log tells, stays, and what a driver staged that has superseded this one.
        """
        blobs = self.store.history.blobs
        blobs.delete(old_staged(self.store.head, blobs.list(paths.STAGED), self.writer.token))

    def discard(self, names: Iterable[str]) -> None:
        """Delete staged files that no epoch needs any more. Those that are still there when the process ends are swept later."""
        with self._lock:
            self._discarded.update(names)
        if not self._deferred:
            self.delete_discarded()

    def delete_discarded(self) -> None:
        """Any thread may call it. What could not be deleted is tried again with the next call."""
        with self._lock:
            names = sorted(self._discarded)
        if names:
            self.store.history.blobs.delete(names)
        with self._lock:
            self._discarded.difference_update(names)

    def finish(self) -> None:
        """Record how far publishing got and delete what is published. Raises ``Conflict`` if another driver has the state."""
        self.record()
        self.delete_discarded()
        head = self.store.history.refresh()
        RequireLease(self.writer.token).check(head)
        if head.published >= head.epoch:
            self.store.history.blobs.delete(head.stored_outputs())

    def close_sinks(self) -> None:
        for outlet in self._outlets:
            outlet.sink.close()


def _row_checks(
    outlets: Sequence[Outlet], schemas: Mapping[tuple[str, str], pa.Schema]
) -> dict[tuple[str, str], tuple[SinkCheck, ...]]:
    checks: dict[tuple[str, str], tuple[SinkCheck, ...]] = {}
    for outlet in outlets:
        row_check = outlet.sink.row_check(schemas[outlet.staged_as])
        if row_check is not None:
            sink = f"the sink {outlet.name}" + (f" ({outlet.sink.target})" if outlet.sink.target else "")
            checks[outlet.staged_as] = (*checks.get(outlet.staged_as, ()), SinkCheck(sink, row_check))
    return checks
