"""Spark's own checkpoint: read for the input position of a batch, compared with our log, and rebuilt from it where it is lost or
damaged."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from floodplain.errors import BadInput
from floodplain.runtime.checkpoint.damage import batch_faults, source_faults
from floodplain.runtime.checkpoint.files import (
    LOGS,
    File,
    differs,
    entries,
    malformed,
    next_watermark_of,
    numbers,
    planned,
    query_id_of,
    read,
    remove,
    remove_entries,
    replaced,
    source_folders,
    unlisted,
    unproven,
    write,
)
from floodplain.runtime.checkpoint.known_files import Known, Load, no_objects
from floodplain.state.descriptors import EVENT_TIME
from floodplain.tiers import paths
from floodplain.versions.records.edit import SourcePosition
from floodplain.versions.records.vouched import FileSum

NEXT_WATERMARK = "next_watermark"
"""The watermark of a state that was imported, by which its next batch runs, as Spark had noted it with the last one."""
_SHOWN_FAULTS = 5
_REBUILD = "delete the checkpoint to rebuild it from the state"
_BEGIN = "delete the checkpoint to read the input from its beginning"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """What Spark recorded of a batch before it ran."""

    position: SourcePosition
    watermark_ms: int
    timestamp_ms: int


def query_id(checkpoint: Path) -> str:
    return query_id_of(_text(checkpoint, "metadata", query_id_of))


def batch_entry(checkpoint: Path, batch_id: int, before: SourcePosition, load: Load = no_objects) -> BatchEntry:
    """The batch's entry in the offset log, and what sources wrote down since ``before``, whose objects ``load`` reads.

    Raises ``BadInput`` that names the file if one is damaged, or no longer what ``before`` says of it.
    """
    query, last = query_id(checkpoint), before.batch_id
    text = _text(checkpoint, f"offsets/{batch_id}", planned)
    if last >= 0 and (query, batch_id) == (before.query_id, last + 1):
        _require_equal(checkpoint, f"offsets/{last}", before.offsets)
    known = Known(before, load)
    kept = {name for source in source_folders(checkpoint) for name in entries(checkpoint, source)}
    for name in sorted(kept & known.names):
        if (wrong := known.differs(name, read(checkpoint / name))) is not None:
            raise _damaged(checkpoint, name, wrong)
    for name in sorted(known.names - kept):
        if not replaced(name, kept):
            raise _damaged(checkpoint, name, "expected what the state has of it, found no such file")
    new = {name: _text(checkpoint, name, str) for name in sorted(kept - known.names)}
    entry = planned(text)
    if (wrong := unlisted(checkpoint, entry)) is not None:
        raise _damaged(checkpoint, f"offsets/{batch_id}", wrong)
    return BatchEntry(_position(query, batch_id, text, new, known), entry.watermark_ms, entry.timestamp_ms)


def _position(query: str, batch_id: int, offsets: str, new: dict[str, str], known: Known) -> SourcePosition:
    """What the edit of a batch is to hold. Of a file that replaces those before it only what is new; where that cannot be told,
    all of it, in place of what is known."""
    own, compacts = {}, {}
    for name, text in new.items():
        source, number, replaces = paths.source_entry(name) or ("", 0, False)
        added = known.own(source, text) if replaces else None
        own[name if added is None else f"{source}/{number}"] = text if added is None else added
        if replaces:
            compacts[name] = FileSum.of(text.encode())
    return SourcePosition(query, batch_id, offsets, own, compacts=compacts)


def _text(checkpoint: Path, name: str, form: Callable[[str], object]) -> str:
    """Raises ``BadInput`` if the file is not there, not of this form, or not what its checksum was made of."""
    file = read(checkpoint / name)
    if file.vouched is None and file.data:
        file = File(file.data, vouched=True)  # Spark has just read or written it, and may have been told to write no checksums
    wrong = unproven(file) or malformed(file, form)
    if wrong is not None:
        raise _damaged(checkpoint, name, wrong)
    return file.text


def _require_equal(checkpoint: Path, name: str, text: str) -> None:
    wrong = differs(read(checkpoint / name), text)
    if wrong is not None:
        raise _damaged(checkpoint, name, wrong)


def _damaged(checkpoint: Path, name: str, wrong: str, way_out: str = _REBUILD) -> BadInput:
    return BadInput(f"{checkpoint / name} of Spark's checkpoint is not what it was: {wrong}. Nothing was read by it: {way_out}")


def next_watermark(checkpoint: Path, batch_id: int) -> int:
    """The watermark that the batch after this one will have; 0 if there is none, or it is not known yet."""
    file = read(checkpoint / "commits" / str(batch_id))
    if not file.data or file.vouched is False or malformed(file, next_watermark_of):
        return 0
    return next_watermark_of(file.text)


def noted_watermark(watermarks: Mapping[str, int]) -> int:
    """What Spark is to note with the last batch of a state that has these watermarks; 0 for none."""
    return max(watermarks.get(EVENT_TIME, 0), watermarks.get(NEXT_WATERMARK, 0), 0)


def is_noted(checkpoint: Path, batch_id: int) -> bool:
    """Whether Spark has this batch down as processed. There is nothing to note before the first."""
    return batch_id < 0 or (checkpoint / "commits" / str(batch_id)).exists()


def agree(
    checkpoint: Path,
    committed: SourcePosition,
    watermark_ms: int,
    left: Sequence[SourcePosition] = (),
    load: Load = no_objects,
) -> None:
    """Refuse a checkpoint that does not belong to this state, or is not where it is; rebuild one that is gone or damaged.

    The state is authoritative: it says which input it has. From another position, rows would be skipped or repeated. A batch that
    has begun after it is continued only if its files match their checksums; else Spark plans the next batch again.
    ``left``: positions that the state was rolled back from and has not reached again. A checkpoint at one of them is rebuilt.
    ``load`` reads objects that the positions name.
    """
    begun, done = (max(numbers(checkpoint / log), default=-1) for log in LOGS)
    metadata = read(checkpoint / "metadata")
    query_id = None if metadata.vouched is False or malformed(metadata, query_id_of) else query_id_of(metadata.text)
    if any(_was_at(checkpoint, query_id, (begun, done), place) for place in left if place.batch_id != committed.batch_id):
        if committed.batch_id < 0:
            _forget(checkpoint)
        else:
            rebuild(checkpoint, committed, watermark_ms, load)
    elif committed.batch_id < 0:
        _agree_on_none(checkpoint, begun, done)
    elif query_id is None:
        if metadata.data is not None or max(begun, done) >= 0:
            _warn(checkpoint, committed, ["metadata: expected the id of the query, found no such file, or a damaged one"])
        rebuild(checkpoint, committed, watermark_ms, load)
    else:
        _check_place(checkpoint, query_id, (begun, done), committed)
        note, known = _note(watermark_ms), Known(committed, load)
        if faults := [*batch_faults(checkpoint, committed, note), *source_faults(checkpoint, known, committed.batch_id)]:
            _warn(checkpoint, committed, faults)
            _mend(checkpoint, committed, note, known)


def _agree_on_none(checkpoint: Path, begun: int, done: int) -> None:
    """Of the first batch the checkpoint may know the input: it runs again, from the same place."""
    if begun > 0 or done >= 0:
        raise BadInput(
            f"the checkpoint at {checkpoint} has batches up to {max(begun, done)}, and the state has none: it belongs to "
            f"another state. Start with that one, or {_BEGIN}"
        )
    # A source may have noted there where its input begins for this query: nobody else knows.
    for fault in source_faults(checkpoint, Known(SourcePosition()), -1):
        name, _, damage = fault.partition(": ")
        raise _damaged(checkpoint, name, damage, _BEGIN)
    metadata, first = (read(checkpoint / name) for name in ("metadata", "offsets/0"))
    damage_of = {"metadata": unproven(metadata) or malformed(metadata, query_id_of)}
    if first.data is not None:
        wrong = unproven(first) or malformed(first, planned)
        damage_of["offsets/0"] = wrong or unlisted(checkpoint, planned(first.text))
    faults = [f"{name}: {wrong}" for name, wrong in damage_of.items() if wrong is not None]
    if faults and (metadata.data, first.data) != (None, None):
        _warn(checkpoint, SourcePosition(), faults)
        _forget_batches(checkpoint)


def _check_place(checkpoint: Path, query_id: str, at: tuple[int, int], committed: SourcePosition) -> None:
    if query_id != committed.query_id:
        raise BadInput(
            f"the checkpoint at {checkpoint} is of query {query_id} by its file metadata, the state of query "
            f"{committed.query_id}: {_REBUILD}"
        )
    if at[1] > committed.batch_id or not 0 <= max(at) - committed.batch_id <= 1:
        raise BadInput(
            f"the checkpoint at {checkpoint} is at batch {max(at)}, and the state has all up to {committed.batch_id}: "
            "one of them is older, as from a backup. Delete the checkpoint to rebuild it from the state, so that the input is "
            "read on from there"
        )


def _warn(checkpoint: Path, committed: SourcePosition, faults: Sequence[str]) -> None:
    more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
    _log.warning(
        "Spark's checkpoint at %s is damaged (%s%s). It is made anew from the state: the input is read on behind batch %d",
        checkpoint,
        "; ".join(faults[:_SHOWN_FAULTS]),
        more,
        committed.batch_id,
    )


def _was_at(checkpoint: Path, query: str | None, at: tuple[int, int], position: SourcePosition) -> bool:
    """Whether this is the checkpoint of a state that had read this far: the same query, the same batch with the same offsets, and
    no more than the next one begun."""
    begun, done = at
    if position.batch_id < 0 or query != position.query_id:
        return False
    if done > position.batch_id or not 0 <= begun - position.batch_id <= 1:
        return False
    file = read(checkpoint / "offsets" / str(position.batch_id))
    return not malformed(file, str) and file.text.splitlines()[2:] == _offsets(position)


def _forget(checkpoint: Path) -> None:
    """The input is to be read from its beginning. Whoever dies on the way leaves a checkpoint that is known for what it is or
    has no batches: the offsets go at once, and after the notes on them."""
    for folder in ("commits", "sources"):
        shutil.rmtree(checkpoint / folder, ignore_errors=True)
    _forget_batches(checkpoint)


def _forget_batches(checkpoint: Path) -> None:
    gone = checkpoint / "offsets.left"
    shutil.rmtree(gone, ignore_errors=True)
    if (checkpoint / "offsets").exists():
        (checkpoint / "offsets").rename(gone)
        shutil.rmtree(gone)
    remove(checkpoint / "metadata")


def _mend(checkpoint: Path, committed: SourcePosition, note: str, known: Known) -> None:
    """As ``rebuild``, of what is sure to be the checkpoint of this state: what is sound and the state does not know stays."""
    file = read(checkpoint / "commits" / str(committed.batch_id))
    sound = not (unproven(file) or malformed(file, next_watermark_of))
    texts = {name: known.text(name) for name in known.names}
    remove(checkpoint / "metadata")
    for source in source_folders(checkpoint):
        remove_entries(checkpoint / source)
    _write(checkpoint, committed, file.text if sound else note, texts)


def rebuild(checkpoint: Path, committed: SourcePosition, watermark_ms: int, load: Load = no_objects) -> None:
    """A checkpoint that continues behind the last batch in the state, in place of what may be left of another one.

    Whoever dies on the way leaves one without ``metadata``, which is rebuilt.
    """
    known = Known(committed, load)
    texts = {name: known.text(name) for name in known.names}
    remove(checkpoint / "metadata")
    _remove_folder(checkpoint / "sources")
    _write(checkpoint, committed, _note(watermark_ms), texts)


def _write(checkpoint: Path, committed: SourcePosition, note: str, texts: Mapping[str, str]) -> None:
    """``texts``: of the files of sources."""
    for log in LOGS:
        _remove_folder(checkpoint / log)
    for name, text in texts.items():
        write(checkpoint / name, text)
    # Spark wants the entry before the last one too. It is not read again: the last batch is marked as done.
    for batch_id in range(max(committed.batch_id - 1, 0), committed.batch_id + 1):
        write(checkpoint / "offsets" / str(batch_id), committed.offsets)
    write(checkpoint / "commits" / str(committed.batch_id), note)
    (checkpoint / "sources").mkdir(exist_ok=True)
    write(checkpoint / "metadata", json.dumps({"id": committed.query_id}))


def _remove_folder(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _note(watermark_ms: int) -> str:
    return "v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms})


def is_replay(committed: SourcePosition, batch: SourcePosition) -> bool:
    """Whether this batch is in the state already. Raises if it is neither the last one in it nor the next."""
    here, last = ((position.query_id, position.batch_id) for position in (batch, committed))
    if here == (committed.query_id or batch.query_id, committed.batch_id + 1):
        return False
    if here != last or batch.offsets != committed.offsets or batch.sources or batch.compacts:
        raise BadInput(
            f"batch {batch.batch_id} of query {batch.query_id} is neither the last one in the state (batch {committed.batch_id} "
            f"of query {committed.query_id}, with the same offsets) nor the one after it{_difference(committed, batch)}: the "
            "checkpoint was changed; delete it to rebuild it from the state"
        )
    return True


def _difference(committed: SourcePosition, batch: SourcePosition) -> str:
    """How a batch that should be the last one of the state differs from it."""
    if (batch.query_id, batch.batch_id) != (committed.query_id, committed.batch_id):
        return ""
    wrong = differs(File(batch.offsets.encode(), vouched=True), committed.offsets)
    return (
        f"; in offsets/{batch.batch_id}: {wrong}"
        if wrong
        else f"; the state does not know {', '.join([*batch.sources, *batch.compacts])}"
    )


def _offsets(position: SourcePosition) -> list[str]:
    return position.offsets.splitlines()[2:]
