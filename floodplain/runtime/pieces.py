"""Rows on their way from the task that made them to the slots that own them, where workers keep them in memory."""

from collections.abc import Iterable

import msgspec


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one slot in a piece: an Arrow stream at a place in one of its files."""

    slot: int
    file: int
    offset: int
    length: int
    rows: int
    checksum: int
    """xxh3-64 of these bytes, by who made them: whoever uses them compares."""


class PieceKey(msgspec.Struct, frozen=True, array_like=True):
    """A piece: the rows that one reader made of one partition of an exchange, for all slots."""

    exchange: str
    """The operator that reads it."""
    partition: int
    """Its place among the partitions: owners join pieces in this order."""
    attempt: str
    """Tells it from what another attempt made of the same partition."""


class Piece(msgspec.Struct, frozen=True):
    """A piece and the worker that keeps it."""

    key: PieceKey
    worker: int
    segments: tuple[Segment, ...]
    """In the order in which they were made, which is the order of the rows."""

    def of(self, slot: int) -> list[Segment]:
        return [segment for segment in self.segments if segment.slot == slot]


def by_slot(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    """Slot → the pieces that have rows of it, each with the segments of that slot only."""
    of_slot: dict[int, list[Piece]] = {}
    for piece in pieces:
        segments: dict[int, list[Segment]] = {}
        for segment in piece.segments:
            segments.setdefault(segment.slot, []).append(segment)
        for slot, own in segments.items():
            of_slot.setdefault(slot, []).append(Piece(piece.key, piece.worker, tuple(own)))
    return of_slot
