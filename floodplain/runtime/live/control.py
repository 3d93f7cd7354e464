"""Runs control operations between two epochs: tasks look, the driver merges and decides, and one edit records the decision."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import msgspec
import xxhash

from floodplain.errors import BadInput, FloodplainError, UserError, short
from floodplain.runtime.engine import MOST_TRIES, TryFailed
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.runtime.live.operation import ControlContext, ControlOperation, Rescale, Tag, Update
from floodplain.runtime.live.slots import ControlJob, SlotReport, encoded
from floodplain.runtime.live.update import tagging
from floodplain.runtime.task_store import Work
from floodplain.store.write.task_writer import conflict_before_damage
from floodplain.tiers.paths import checked_name
from floodplain.versions.log.commit import commit
from floodplain.versions.log.requirements import RequireEpoch, RequireLease
from floodplain.versions.records.assignment import groups_of
from floodplain.versions.records.control import LOGGED_BYTES, ControlRecord, Kind, NoteControl, Outcome
from floodplain.versions.records.edit import Update as Record
from floodplain.versions.records.manifest_delta import for_tasks

_log = logging.getLogger(__name__)

Look: TypeAlias = Callable[[ControlJob], Sequence[SlotReport]]
"""Runs an operation in all slots of an engine: one report of each. May raise ``TryFailed``."""
Switch: TypeAlias = Callable[[Update, Sequence[Record]], object]
"""Has the pipeline of a decision take over, by an edit that also has these records."""


@dataclass(frozen=True)
class Run:
    """One run of a control operation."""

    operation: ControlOperation
    id: str
    """A run that is in the log already is not repeated."""


def control(runner: EpochRunner, run: Run, look: Look, switch: Switch) -> Any:
    """Run the operation on the last committed epoch; returns what was decided.

    Requires: no epoch runs. Either its decision is in the log, with all that follows from it, or nothing is.
    """
    operation = run.operation
    _check(operation, runner.bound.operators)
    checked_name("control run", run.id)
    head = runner.store.history.refresh()
    RequireLease(runner.writer.token).check(head)
    recorded = next((each for each in head.controls if (each.note.name, each.note.run) == (operation.name, run.id)), None)
    if recorded is not None:
        return decided(recorded)
    result = _merged(operation, _looked(runner, operation, look))
    decision = _decided(operation, result, _context(runner))
    kind, shown = _described(operation, decision)
    note = NoteControl(
        name=operation.name,
        run=run.id,
        operator=operation.operator,
        kind=kind,
        result=_outcome(encoded(result, f"merge of {operation.name}")),
        decision=_outcome(shown),
    )
    _commit(runner, head.epoch, decision, note, switch)
    return msgspec.json.decode(shown) if kind == "value" else decision


def decided(record: ControlRecord) -> Any:
    """What a run in the log has decided. Raises ``BadInput`` for a value that was too large for the log."""
    note = record.note
    if not note.decision.json:
        raise BadInput(
            f"control operation {note.name} has decided in run {note.run!r}, on epoch {record.epoch}, and the log has only the "
            f"digest of its {note.decision.size_bytes} bytes: give the next run another name"
        )
    value = msgspec.json.decode(note.decision.json)
    match note.kind:
        case "rescale":
            return Rescale(value)
        case "tag":
            return Tag(value)
        case "update":
            return Update(None)
        case _:
            return value


def _check(operation: ControlOperation, operators: Mapping[str, object]) -> None:
    if not isinstance(operation, ControlOperation):
        raise BadInput(f"control takes a ControlOperation, and {short(operation)} is none: subclass fp.ControlOperation")
    checked_name("control operation", operation.name)
    operator = getattr(operation, "operator", None)
    if operator not in operators:
        known = ", ".join(operators) or "none"
        raise BadInput(f"control operation {operation.name}: this pipeline has no operator {operator!r}; it has: {known}")


def _looked(runner: EpochRunner, operation: ControlOperation, look: Look) -> list[Any]:
    """What each slot contributes, in their order. If what runs a task is lost, all slots are looked at again."""
    for tried in range(1, MOST_TRIES + 1):
        try:
            with conflict_before_damage(runner.store.history, [RequireLease(runner.writer.token)]):
                reports = sorted(look(_job(runner, operation)), key=lambda report: report.slot)
            break
        except TryFailed as failed:
            _log.warning("control operation %s, try %s of %s: %s", operation.name, tried, MOST_TRIES, failed)
            if tried == MOST_TRIES:
                raise failed.error from failed
    for report in reports:
        if report.failure is not None:
            raise report.failure.error()
    return [msgspec.json.decode(report.value) for report in reports]


def _job(runner: EpochRunner, operation: ControlOperation) -> ControlJob:
    place, head = runner.bound.place, runner.store.head
    ticket = msgspec.msgpack.encode(runner.writer.epoch().ticket)
    return ControlJob(
        work=Work(place.location, place.settings, dict(place.options), ticket, place.blobs),
        manifest=msgspec.msgpack.encode(for_tasks(head)),
        operation=operation,
        slots=groups_of(runner.parallelism.next(head).plans[operation.operator], head.key_groups),
    )


def _merged(operation: ControlOperation, values: list[Any]) -> Any:
    return _called(operation, "merge", lambda: reduce(operation.merge, values))


def _decided(operation: ControlOperation, result: Any, context: ControlContext) -> Any:
    return _called(operation, "decide", lambda: operation.decide(result, context))


def _called(operation: ControlOperation, method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except FloodplainError:
        raise
    except Exception as error:
        message = short(str(error), 1000, quoted=False)
        raise UserError(f"{type(error).__name__} in {method} of control operation {operation.name}: {message}") from error


def _context(runner: EpochRunner) -> ControlContext:
    head, epochs = runner.store.head, runner.progress.epochs
    return ControlContext(
        epoch=head.epoch,
        slots=runner.slots,
        operators=tuple(runner.bound.operators),
        tags=dict(head.tags),
        progress=epochs[-1] if epochs else None,
    )


def _described(operation: ControlOperation, decision: Any) -> tuple[Kind, bytes]:
    """Kind and content of a decision, as the log has it: no code."""
    match decision:
        case Rescale(slots=slots):
            return "rescale", encoded(slots, f"decide of {operation.name}")
        case Tag(name=name):
            return "tag", encoded(name, f"decide of {operation.name}")
        case Update():
            return "update", b"null"
        case _:
            return "value", encoded(decision, f"decide of {operation.name}")


def _outcome(data: bytes) -> Outcome:
    kept = data.decode() if len(data) <= LOGGED_BYTES else ""
    return Outcome(len(data), xxhash.xxh3_128_hexdigest(data), kept)


def _commit(runner: EpochRunner, epoch: int, decision: Any, note: NoteControl, switch: Switch) -> None:
    """``epoch``: the one that was looked at. Raises ``Conflict`` if it is not the last one any more."""
    unmoved, follows = RequireEpoch(epoch), list[Record]()
    head = runner.store.history.refresh()
    unmoved.check(head)
    match decision:
        case Update():
            switch(decision, [note])
            return
        case Tag(name=name):
            follows += tagging(head, name)
        case Rescale(slots=slots):
            runner.rescale(slots)
    planned = runner.parallelism.next(head)
    follows += planned.changes if isinstance(decision, Rescale) else []
    commit(runner.store.history, [*follows, note], [unmoved], token=runner.writer.token)
    if isinstance(decision, Rescale):
        runner.parallelism.committed(planned)
