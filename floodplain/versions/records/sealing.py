"""Putting what sources have noted into objects, so that edits and manifests stay small however many files were read.

The newest entries stand in the manifest, up to ``KEPT_BYTES``. What is beyond goes into an object, together with objects before
it: those of a lower tier, and those of its own once there are ``FAN_IN`` of them. So each byte is written about once per tier,
and there are few objects.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from floodplain.errors import Corrupt
from floodplain.tiers import paths
from floodplain.versions.records import seen
from floodplain.versions.records.edit import SeenRef, SourcePosition
from floodplain.versions.records.seen import SeenEntry
from floodplain.versions.records.vouched import FileSum

KEPT_BYTES = 16 << 10
"""Of all sources together, what a manifest has of their entries as text."""
FAN_IN = 8
MOST_BYTES = 64 << 20
"""An object of this size is not merged with others any more."""

Write = Callable[[str, bytes], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sealing:
    """What shall become one object: these objects, oldest first, and behind them these entries."""

    source: str
    objects: tuple[SeenRef, ...]
    entries: tuple[SeenEntry, ...]


@dataclass(frozen=True, slots=True)
class Maker:
    """Whoever writes objects of seen files: for which store, under which names, how."""

    store: str
    name: Callable[[str], str]
    """Of the object of a part."""
    load: Callable[[SeenRef], tuple[SeenEntry, ...]]
    write: Write


def sealed(before: SourcePosition, update: SourcePosition, maker: Maker, kept_bytes: int | None = None) -> SourcePosition:
    """``update`` of an edit on ``before``, with objects in place of what is too much for text. They are written."""
    for number, sealing in enumerate(proposed(before, update, KEPT_BYTES if kept_bytes is None else kept_bytes)):
        ref, replacing = _written(sealing, maker, f"seen{number}")
        gone = {_name(sealing.source, entry) for entry in sealing.entries}
        update = msgspec.structs.replace(
            update,
            sources={name: text for name, text in update.sources.items() if name not in gone},
            seen=(*update.seen, ref),
            compacts={**replacing, **update.compacts},
        )
    return update


def proposed(before: SourcePosition, update: SourcePosition, kept_bytes: int) -> Iterator[Sealing]:
    """What is to be put into objects: of the sources with most text first, until no more than ``kept_bytes`` stay as text."""
    noted = _entries({**before.sources, **update.sources}, update.forget)
    sizes = {source: sum(map(_size, entries)) for source, entries in noted.items()}
    left = sum(sizes.values())
    for source in sorted(sizes, key=lambda source: (-sizes[source], source)):
        if left <= kept_bytes:
            return
        left -= sizes[source]
        entries = _counting(noted[source])
        older = [ref for ref in before.seen if ref.source == source and not entries[0].replaces]
        yield Sealing(source, tuple(_joining(older, sizes[source], kept_bytes)), tuple(entries))


def _entries(notes: dict[str, str], forget: Iterable[str]) -> dict[str, list[SeenEntry]]:
    by_source: dict[str, list[SeenEntry]] = {}
    for name, text in notes.items():
        entry = paths.source_entry(name)
        if entry is not None and name not in forget:
            by_source.setdefault(entry[0], []).append(SeenEntry(entry[1], text, entry[2]))
    return {source: sorted(entries, key=lambda entry: entry.number) for source, entries in by_source.items()}


def _counting(entries: list[SeenEntry]) -> list[SeenEntry]:
    """From the newest on that replaces all before it."""
    start = max((at for at, entry in enumerate(entries) if entry.replaces), default=0)
    return entries[start:]


def _size(entry: SeenEntry) -> int:
    return len(entry.text.encode())


def _name(source: str, entry: SeenEntry) -> str:
    return f"{source}/{entry.number}{'.compact' if entry.replaces else ''}"


def _joining(older: Sequence[SeenRef], size: int, unit: int) -> list[SeenRef]:
    """The newest of the earlier objects, those to merge with ``size`` more bytes."""
    start = len(older)
    while True:
        tier = _tier(size, unit)
        lower = start
        while lower > 0 and _may_join(older[lower - 1]) and _tier(older[lower - 1].sum.length, unit) < tier:
            lower -= 1
        equal = lower
        while equal > 0 and _may_join(older[equal - 1]) and _tier(older[equal - 1].sum.length, unit) == tier:
            equal -= 1
        next_start = equal if lower - equal >= FAN_IN - 1 else lower
        if next_start == start:
            return list(older[start:])
        size += sum(ref.sum.length for ref in older[next_start:start])
        start = next_start


def _may_join(ref: SeenRef) -> bool:
    return ref.sum.length < MOST_BYTES


def _tier(size: int, unit: int) -> int:
    tier, bound = 0, max(unit, 1) * FAN_IN
    while size >= bound:
        tier, bound = tier + 1, bound * FAN_IN
    return tier


def _written(sealing: Sealing, maker: Maker, part: str) -> tuple[SeenRef, dict[str, FileSum]]:
    """How the new object is referred to, and what vouches for the files that are in it whole and replace others."""
    older: list[SeenEntry] = []
    joined = sealing.objects
    try:
        older = [entry for ref in joined for entry in maker.load(ref)]
    except Corrupt as damage:
        # The epoch can do without: the damaged object stays what it is, for whoever verifies or restores it.
        _log.warning("%s It is not merged with others", damage)
        joined, older = (), []
    entries = [*older, *sealing.entries]
    first = 0 if entries[0].replaces else min([entries[0].number, *(ref.first for ref in joined)])
    data, ref = seen.packed(maker.store, sealing.source, entries, maker.name(part), first)
    maker.write(ref.object, data)
    replacing = [entry for entry in sealing.entries if entry.replaces]
    return ref, {_name(sealing.source, entry): FileSum.of(entry.text.encode()) for entry in replacing}
