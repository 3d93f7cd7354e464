"""How the place in the input moves on: what sources have noted since is added, and what objects hold of it gives way to them."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from floodplain.tiers import paths
from floodplain.versions.records.edit import SeenRef, SourcePosition


def advanced(before: SourcePosition, update: SourcePosition) -> SourcePosition:
    """The position after an edit that has ``update``."""
    spans = [(ref.source, ref.first, ref.last) for ref in update.seen]
    for name in update.sources:
        entry = paths.source_entry(name)
        if entry is not None and entry[2]:
            spans.append((entry[0], 0, entry[1]))

    def replaced(source: str, first: int, last: int) -> bool:
        return any(source == folder and low <= first and last <= high for folder, low, high in spans)

    def stays(name: str) -> bool:
        entry = paths.source_entry(name)
        return name not in update.forget and (entry is None or not replaced(entry[0], entry[1], entry[1]))

    kept = {name: text for name, text in before.sources.items() if stays(name)}
    held = [ref for ref in before.seen if not replaced(ref.source, ref.first, ref.last)]
    return msgspec.structs.replace(
        update,
        sources={**kept, **update.sources},
        forget=(),
        seen=tuple(sorted([*held, *update.seen], key=lambda ref: (ref.source, ref.first))),
        compacts=_newest({**before.compacts, **update.compacts}),
    )


def _newest(compacts: dict[str, msgspec.Struct]) -> dict[str, msgspec.Struct]:
    """Of each source, the one with the largest number."""
    newest: dict[str, tuple[int, str]] = {}
    for name in compacts:
        entry = paths.source_entry(name)
        if entry is not None:
            newest[entry[0]] = max(newest.get(entry[0], (-1, "")), (entry[1], name))
    return {name: compacts[name] for _, (_, name) in sorted(newest.items())}


def overlaps(refs: Iterable[SeenRef]) -> Iterator[tuple[SeenRef, SeenRef]]:
    """Neighbours of which the second does not come after the first."""
    for one, other in pairwise(refs):
        if one.source == other.source and not one.last < other.first:
            yield one, other
