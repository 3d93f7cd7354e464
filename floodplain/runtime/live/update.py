"""Another plan takes over between two epochs: judged and migrated as at a start, and switched to by one edit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from floodplain.errors import BadInput
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.plan.nodes import Node, Plan
from floodplain.runtime.binder import Binder, BoundPlan
from floodplain.runtime.compatibility.migration import NO_CHANGES, Migration, StartChanges, commit_migration
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.tiers.paths import checked_name
from floodplain.tiers.redact import without_credentials
from floodplain.versions.records.edit import NoteChange, SetTag, Update
from floodplain.versions.records.manifest import Manifest

NOTE = "update"
"""What the changes of a state have for each update."""


@dataclass(frozen=True)
class PlanUpdate:
    """A plan that is to take over."""

    plan: Plan
    """With the sinks that go on."""
    changes: StartChanges = NO_CHANGES
    tag: str | None = None
    """The name that the epoch before it is kept under."""
    front: Node | None = None
    """As of ``EpochRunner``, in the new plan."""


def update(runner: EpochRunner, wanted: PlanUpdate, also: Sequence[Update] = ()) -> int:
    """Switch to the plan; returns the epoch that it begins with, which is the update itself and has no rows.

    Requires: no epoch runs, and the plan has the inputs, the watermark and the sinks of the running one. Whatever it raises was
    raised before the edit, and then the running plan goes on. ``also``: what else the edit records.
    """
    runner.publisher.publish()
    runner.publisher.record()  # what is not published yet is output of the plan that goes
    done = runner.publisher.published_files()
    tags = tagging(runner.store.head, wanted.tag)
    place = runner.bound.place
    names = [operator.name for operator in wanted.plan.operators]
    migration = Migration(runner.store.head, names, wanted.changes, without_credentials(place.location))
    bound = Binder(place, wanted.plan, runner.bound.engine, migration).bind(runner.bound.empty)
    checks = runner.publisher.checked(wanted.plan.outlets, bound.schemas)
    operators = _as_new_code(bound, runner.store.head.epoch + 1)
    measured = {name: last for name, last in runner.bound.measured.items() if name in operators}
    bound = replace(bound, operators=operators, checks=checks, measured=measured)
    switch = runner.bound.engine.successor(bound, wanted.front)
    epoch = commit_migration(runner.writer, migration, [NoteChange(NOTE), *tags, *also])
    runner.publisher.adopt(wanted.plan.outlets, bound.schemas)
    runner.bound, runner.front = bound, wanted.front
    runner.parallelism.adopt(runner.store.head, wanted.plan, wanted.changes.rename)
    switch()
    runner.store.history.blobs.delete(done)
    return epoch


def tagging(head: Manifest, tag: str | None) -> list[SetTag]:
    """The update that keeps the last epoch under a name, if one is given. Raises ``BadInput`` for a name that is taken."""
    if tag is None:
        return []
    checked_name("tag", tag)
    if tag in head.tags:
        raise BadInput(f"tag {tag!r} names epoch {head.tags[tag]} already: drop it with store.drop_tag, or take another name")
    if head.mark(head.epoch) is None:
        raise BadInput(f"tag {tag!r}: no epoch is committed yet, so there is nothing to keep")
    return [SetTag(tag, head.epoch)]


def _as_new_code(bound: BoundPlan, epoch: int) -> Mapping[str, KeyedOperator]:
    """Whether code has changed cannot be told, so all operators are taken for new: what ``open`` gave is opened anew."""
    return {name: replace(operator, since=epoch) for name, operator in bound.operators.items()}
