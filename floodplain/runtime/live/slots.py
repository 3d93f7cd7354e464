"""The task side of a control operation: one slot's part of the state in, plain data out."""

from dataclasses import dataclass

import msgspec

from floodplain.errors import FloodplainError, UserError, short
from floodplain.eventtime.times import NONE_MS, known_ms
from floodplain.runtime.live.operation import ControlOperation, SlotContext, SlotState
from floodplain.runtime.task_errors import FINAL, Failure
from floodplain.runtime.task_store import OpenStore, Work, open_for
from floodplain.state.descriptors import EVENT_TIME
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.write.task_writer import Ticket
from floodplain.versions.log.history import Format, History
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import PROCESSING_TIME

MOST_BYTES = 4 << 20
"""Of what one slot contributes, as JSON. It travels to the driver in a row."""


@dataclass(frozen=True, slots=True)
class ControlJob:
    """All that the tasks of one run of a control operation need."""

    work: Work
    manifest: bytes
    operation: ControlOperation
    slots: tuple[GroupRanges, ...]


class SlotReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task of a control operation returns."""

    slot: int
    value: bytes = b""
    """As JSON."""
    failure: Failure | None = None


def look(job: ControlJob, slot: int) -> SlotReport:
    """Run the operation on one slot. An error that no retry mends is in the report."""
    try:
        return SlotReport(slot, _contribution(job, slot))
    except FINAL as error:
        return SlotReport(slot, failure=Failure.of(error))


def _contribution(job: ControlJob, slot: int) -> bytes:
    manifest = msgspec.msgpack.decode(job.manifest, type=Manifest)
    snapshot = _snapshot(manifest, msgspec.msgpack.decode(job.work.ticket, type=Ticket), job.work, open_for(job.work))
    context = SlotContext(
        slot=slot,
        slots=len(job.slots),
        epoch=manifest.epoch,
        processing_time=manifest.watermarks.get(PROCESSING_TIME, 0),
        watermark=known_ms(manifest.watermarks.get(EVENT_TIME, NONE_MS)),
    )
    operation = job.operation
    try:
        value = operation.on_slot(SlotState(snapshot, operation.operator, job.slots[slot]), context)
        data = encoded(value, f"on_slot of {operation.name}")
    except FloodplainError:
        raise
    except Exception as error:
        raise UserError(
            f"{type(error).__name__} in on_slot of control operation {operation.name}, slot {slot}, epoch {manifest.epoch}: "
            f"{short(str(error), 1000, quoted=False)}"
        ) from error
    if len(data) > MOST_BYTES:
        raise UserError(
            f"on_slot of control operation {operation.name} returned {len(data)} bytes for slot {slot}, and {MOST_BYTES} are the "
            "most: return less, such as a sample or counts"
        )
    return data


def encoded(value: object, what: str) -> bytes:
    """As JSON. Raises ``UserError`` for what is no plain data."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{what} gave {short(value)}, which is no plain data ({error}): return None, booleans, numbers, text, lists or "
            "dictionaries with text keys"
        ) from error


def _snapshot(manifest: Manifest, ticket: Ticket, work: Work, place: OpenStore) -> Snapshot:
    history = History(
        place.blobs,
        Format(ticket.store, ticket.key_groups, 0),
        settings=work.settings,
        clock=place.clock,
        randomness=place.randomness,
    )
    history.advance(manifest)
    return Snapshot(manifest, place.open_runs, history)
