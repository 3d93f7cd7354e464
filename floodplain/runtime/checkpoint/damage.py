"""What is wrong with Spark's checkpoint: by what the state says of its input, and by checksums for what it does not know yet."""

from collections.abc import Iterator
from pathlib import Path

from floodplain.runtime.checkpoint.files import (
    LOGS,
    File,
    content_lines,
    differs,
    entries,
    entry_of,
    malformed,
    next_watermark_of,
    numbers,
    planned,
    read,
    replaced,
    source_folders,
    unlisted,
    unproven,
)
from floodplain.runtime.checkpoint.known_files import Known
from floodplain.versions.records.edit import SourcePosition


def batch_faults(checkpoint: Path, committed: SourcePosition, note: str) -> Iterator[str]:
    """What is wrong with the entries of batches: of those in the state, and of the one that may have begun behind them.

    ``note``: what the state would have Spark note of its last batch.
    """
    last = committed.batch_id
    begun, done = (numbers(checkpoint / log) for log in LOGS)
    newest = max([*begun, last])
    # Spark wants the entry before the newest one, too.
    for batch in range(min([*begun, max(newest - 1, 0)]), newest + 1):
        file = read(checkpoint / "offsets" / str(batch))
        if wrong := _offsets_fault(file, batch, committed) or (batch > last and unlisted(checkpoint, planned(file.text))):
            yield f"offsets/{batch}: {wrong}"
    unnoted = newest == last and max(done, default=-1) == last - 1
    for batch in range(min(done, default=last), last if unnoted else last + 1):
        file = read(checkpoint / "commits" / str(batch))
        ours = batch == last and differs(file, note) is None
        if not ours and (wrong := unproven(file) or malformed(file, next_watermark_of)):
            yield f"commits/{batch}: {wrong}"


def _offsets_fault(file: File, batch: int, committed: SourcePosition) -> str | None:
    differing = differs(file, committed.offsets)
    if batch == committed.batch_id:
        return differing
    if batch == committed.batch_id - 1 and differing is None:
        return None  # as it is rebuilt
    wrong = unproven(file) or malformed(file, planned)
    return wrong if wrong is not None or batch < committed.batch_id else _plan_fault(file.text, committed.offsets)


def _plan_fault(text: str, before: str) -> str | None:
    """What keeps a batch that has begun from being the one after ``before``."""
    plan, last = planned(text), planned(before)
    if (plan.version, len(plan.offsets)) != (last.version, len(last.offsets)):
        return f"expected {len(last.offsets)} sources in version {last.version}, found {len(plan.offsets)} in {plan.version}"
    if plan.timestamp_ms <= last.timestamp_ms:
        return f"expected a time after that of the batch before it, {last.timestamp_ms} ms, found {plan.timestamp_ms} ms"
    return None


def source_faults(checkpoint: Path, known: Known, last: int) -> list[str]:
    """What is wrong with the logs of sources, where they note what they have read. ``last``: the last batch in the state."""
    faults = []
    for folder in sorted(known.sources.union(source_folders(checkpoint))):
        faults += [*_known_faults(checkpoint, folder, known), *_new_faults(checkpoint, folder, known, last)]
    return faults


def _known_faults(checkpoint: Path, folder: str, known: Known) -> Iterator[str]:
    within = known.within(folder)
    new = entries(checkpoint, folder).keys() - within
    for name in within:
        file = read(checkpoint / name)
        cleared_away = file.data is None and replaced(name, new)
        if not cleared_away and (wrong := known.differs(name, file)):
            yield f"{name}: {wrong}"


def _new_faults(checkpoint: Path, folder: str, known: Known, last: int) -> Iterator[str]:
    """Of entries that a source made for the batch after the last one in the state."""
    within = known.within(folder)
    new = {name: entry for name, entry in entries(checkpoint, folder).items() if name not in within}
    seen = known.lines(folder) if new else set()
    number = max((entry[0] for name in within if (entry := entry_of(name))), default=None)
    noted = last < 0 or (checkpoint / "commits" / str(last)).exists()
    for name, (entry_number, compact) in new.items():
        if number is not None and entry_number != number + 1:
            yield f"{name}: expected entry {number + 1}, found {entry_number}"
        elif not noted:
            yield f"{name}: expected commits/{last} to be there before it, found no such file"
        elif wrong := _new_entry_fault(read(checkpoint / name), seen, compact=compact):
            yield f"{name}: {wrong}"
        number = entry_number


def _new_entry_fault(file: File, seen: set[str], *, compact: bool) -> str | None:
    """``seen``: what the state knows to be read."""
    if wrong := unproven(file) or malformed(file, str):
        return wrong
    lines = set(content_lines([file.text]))
    if compact:
        return "expected all that was read before, found less" if seen - lines else None
    return f"expected new input, found again {min(seen & lines)}" if seen & lines else None
