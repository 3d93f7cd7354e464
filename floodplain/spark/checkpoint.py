"""Spark's own checkpoint: read for the input position of a batch, rebuilt from our log when it is lost."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from floodplain.errors import BadInput
from floodplain.versions.edit import SourcePosition

SOURCES = "sources/"


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """What Spark recorded of a batch before it ran."""

    position: SourcePosition
    watermark_ms: int
    timestamp_ms: int


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def batch_entry(checkpoint: Path, batch_id: int, before: SourcePosition) -> BatchEntry:
    """The batch's entry in the offset log, and what sources wrote down since ``before``."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text()
    times = json.loads(text.splitlines()[1])
    kept = [name for source in sorted((checkpoint / "sources").glob("*")) for name in _needed(checkpoint, source)]
    new = {name: (checkpoint / name).read_text() for name in kept if name not in before.sources}
    gone = tuple(name for name in before.sources if name.startswith(SOURCES) and name not in kept)
    position = SourcePosition(query_id(checkpoint), batch_id, text, new, gone)
    return BatchEntry(position, int(times["batchWatermarkMs"]), int(times["batchTimestampMs"]))


def _needed(checkpoint: Path, source: Path) -> list[str]:
    """A source's log: numbered files, now and then one ``n.compact`` that replaces all up to n."""
    numbered = {}
    for path in source.iterdir():
        number, _, suffix = path.name.partition(".")
        if path.is_file() and number.isdigit() and suffix in ("", "compact"):
            numbered[int(number), suffix] = path
    since = max((number for number, suffix in numbered if suffix), default=-1)
    return [str(path.relative_to(checkpoint)) for (number, _), path in sorted(numbered.items()) if number >= since]


def next_watermark(checkpoint: Path, batch_id: int) -> int:
    """The watermark that the batch after this one will have; 0 if there is none, or it is not known yet."""
    try:
        text = (checkpoint / "commits" / str(batch_id)).read_text()
        return int(json.loads(text.splitlines()[1]).get("nextBatchWatermarkMs", 0))
    except (FileNotFoundError, IndexError, ValueError):
        return 0


def is_noted(checkpoint: Path, batch_id: int) -> bool:
    """Whether Spark has this batch down as processed. There is nothing to note before the first."""
    return batch_id < 0 or (checkpoint / "commits" / str(batch_id)).exists()


def agree(checkpoint: Path, committed: SourcePosition, watermark_ms: int, left: Sequence[SourcePosition] = ()) -> None:
    """Refuse a checkpoint that does not belong to this state, or is not where it is; rebuild one that is gone.

    The state's word counts: it says up to where the input is in it. From another place rows would be skipped or repeated.
    ``left``: where the state went back from and has not read on since. A checkpoint that is there is made anew: it followed the
    state up to then.
    """
    begun, done = (_newest(checkpoint / log) for log in ("offsets", "commits"))
    if any(_was_at(checkpoint, begun, done, position) for position in left if position.batch_id != committed.batch_id):
        if committed.batch_id < 0:
            _forget(checkpoint)
            return
        (checkpoint / "metadata").unlink()
    if committed.batch_id < 0:
        # Of the first batch the checkpoint may know the input: it runs again, from the same place.
        if begun > 0 or done >= 0:
            raise BadInput(
                f"the checkpoint at {checkpoint} has batches up to {max(begun, done)}, and the state has none: it belongs to "
                "another state. Start with that one, or delete the checkpoint to read the input from its beginning"
            )
    elif not (checkpoint / "metadata").exists():
        rebuild(checkpoint, committed, watermark_ms)
    elif (found := query_id(checkpoint)) != committed.query_id:
        raise BadInput(
            f"the checkpoint at {checkpoint} is of query {found}, the state of query {committed.query_id}: "
            "delete the checkpoint to rebuild it from the state"
        )
    elif done > committed.batch_id or not 0 <= begun - committed.batch_id <= 1:
        raise BadInput(
            f"the checkpoint at {checkpoint} is at batch {max(begun, done)}, and the state has all up to {committed.batch_id}: "
            "one of them is older, as from a backup. Delete the checkpoint to rebuild it from the state, so that the input is "
            "read on from there"
        )


def _newest(log: Path) -> int:
    """The newest batch that one of Spark's logs has; -1 if it has none."""
    return max((int(path.name) for path in log.glob("[0-9]*") if path.name.isdigit()), default=-1)


def _was_at(checkpoint: Path, begun: int, done: int, position: SourcePosition) -> bool:
    """Whether this is the checkpoint of a state that had read this far: the same query, the same batch with the same offsets, and
    no more than the next one begun."""
    if position.batch_id < 0 or not (checkpoint / "metadata").exists() or query_id(checkpoint) != position.query_id:
        return False
    if done > position.batch_id or not 0 <= begun - position.batch_id <= 1:
        return False
    path = checkpoint / "offsets" / str(position.batch_id)
    return path.exists() and path.read_text().splitlines()[2:] == _offsets(position)


def _forget(checkpoint: Path) -> None:
    """The input is to be read from its beginning. Whoever dies on the way leaves a checkpoint that is known for what it is or
    has no batches: the offsets go at once, and after the notes on them."""
    for folder in ("commits", "sources"):
        shutil.rmtree(checkpoint / folder, ignore_errors=True)
    gone = checkpoint / "offsets.left"
    shutil.rmtree(gone, ignore_errors=True)
    (checkpoint / "offsets").rename(gone)
    shutil.rmtree(gone)
    (checkpoint / "metadata").unlink()
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)


def _clear(checkpoint: Path) -> None:
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)
    for folder in ("offsets", "commits", "sources"):
        if (checkpoint / folder).exists():
            shutil.rmtree(checkpoint / folder)


def rebuild(checkpoint: Path, committed: SourcePosition, watermark_ms: int) -> None:
    """A checkpoint that continues behind the last batch in the state, in place of what may be left of another one."""
    _clear(checkpoint)
    for folder in ("offsets", "commits", "sources"):
        (checkpoint / folder).mkdir(parents=True)
    for name, text in committed.sources.items():
        if not name.startswith(SOURCES):
            continue
        path = checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # Spark wants the entry before the last one too. It is not read again: the last batch is marked as done.
    for batch_id in range(max(committed.batch_id - 1, 0), committed.batch_id + 1):
        (checkpoint / "offsets" / str(batch_id)).write_text(committed.offsets)
    (checkpoint / "commits" / str(committed.batch_id)).write_text("v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms}))
    (checkpoint / "metadata").write_text(json.dumps({"id": committed.query_id}))


def is_replay(committed: SourcePosition, batch: SourcePosition) -> bool:
    """Whether this batch is in the state already. Raises if it is neither the last one in it nor the next."""
    here, last = ((position.query_id, position.batch_id) for position in (batch, committed))
    if here == (committed.query_id or batch.query_id, committed.batch_id + 1):
        return False
    if here != last or _offsets(batch) != _offsets(committed):
        raise BadInput(
            f"batch {batch.batch_id} of query {batch.query_id} is neither the last one in the state (batch {committed.batch_id} "
            f"of query {committed.query_id}, with the same offsets) nor the one after it: the checkpoint was changed; delete it "
            "to rebuild it from the state"
        )
    return True


def _offsets(position: SourcePosition) -> list[str]:
    return position.offsets.splitlines()[2:]
