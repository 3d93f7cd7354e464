"""What changed from one manifest to a later one: to bring it to processes that have the earlier one.

Edits would tell as much, but the chain of a manifest is one of edits, so who applies a delta knows that it starts from the same
manifest as its maker did, whichever way both came there.
"""

from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec

from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.manifest import BrokenHistory, Manifest

_RUNS = "runs"
_FIELDS = {name: type_ for name, type_ in get_type_hints(Manifest).items() if name in Manifest.__struct_fields__}


class RunsDelta(msgspec.Struct, frozen=True, array_like=True):
    """Of the runs of one table."""

    dropped: tuple[int, ...]
    """Their places among the runs before."""
    places: tuple[int, ...]
    """Where the added ones are among the runs after."""
    added: tuple[RunRef, ...]


class ManifestDelta(msgspec.Struct, frozen=True):
    before: str
    """The chain of the manifest that it applies to."""
    fields: dict[str, bytes]
    """The other fields that differ, encoded."""
    runs: dict[str, RunsDelta]
    """By table, of those whose runs differ."""
    gone: tuple[str, ...]
    """Tables that have runs before, and no entry after."""


def for_tasks(manifest: Manifest) -> Manifest:
    """Without what only drivers need: the staged output of the last epoch, of which each slot may have a file."""
    return msgspec.structs.replace(manifest, outputs=(), sums=())


def delta(before: Manifest, after: Manifest) -> ManifestDelta:
    """What makes ``after`` of ``before``, and few bytes if they share most of their runs, as manifests of one fold do."""
    names = [name for name in _FIELDS if name != _RUNS and getattr(before, name) != getattr(after, name)]
    runs = {table: (before.runs.get(table), refs) for table, refs in after.runs.items()}
    return ManifestDelta(
        before=before.chain,
        fields={name: msgspec.msgpack.encode(getattr(after, name)) for name in names},
        runs={table: _runs_delta(old or (), new) for table, (old, new) in runs.items() if old is not new},
        gone=tuple(table for table in before.runs if table not in after.runs),
    )


def updated(before: Manifest, change: ManifestDelta) -> Manifest:
    """Raises ``BrokenHistory`` if the delta is one of another manifest."""
    if change.before != before.chain:
        raise BrokenHistory(f"a delta of the manifest with chain {before.chain}", f"one of {change.before}")
    fields: dict[str, Any] = {name: msgspec.msgpack.decode(data, type=_FIELDS[name]) for name, data in change.fields.items()}
    kept = {table: refs for table, refs in before.runs.items() if table not in change.gone}
    runs = {table: _with_delta(before.runs.get(table, ()), each) for table, each in change.runs.items()}
    return msgspec.structs.replace(before, **fields, runs={**kept, **runs})


def _runs_delta(before: Sequence[RunRef], after: Sequence[RunRef]) -> RunsDelta:
    # Manifests of one fold share their runs, so identity tells; what is equal and not the same is sent once more.
    old, new = set(map(id, before)), set(map(id, after))
    if [id(run) for run in before if id(run) in new] != [id(run) for run in after if id(run) in old]:
        return RunsDelta(tuple(range(len(before))), tuple(range(len(after))), tuple(after))
    added = [(place, run) for place, run in enumerate(after) if id(run) not in old]
    dropped = tuple(place for place, run in enumerate(before) if id(run) not in new)
    return RunsDelta(dropped, tuple(place for place, _ in added), tuple(run for _, run in added))


def _with_delta(before: Sequence[RunRef], change: RunsDelta) -> tuple[RunRef, ...]:
    dropped = set(change.dropped)
    kept = (run for place, run in enumerate(before) if place not in dropped)
    added = dict(zip(change.places, change.added, strict=True))
    count = len(before) - len(dropped) + len(added)
    return tuple(added[place] if place in added else next(kept) for place in range(count))
