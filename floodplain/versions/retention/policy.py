"""Which past epochs to forget: a pure policy."""

from collections.abc import Iterable, Mapping, Sequence

from floodplain.settings import RetentionSettings
from floodplain.versions.records.manifest import EpochMark


def epochs_to_drop(
    marks: Sequence[EpochMark], tags: Mapping[str, int], now_ms: int, settings: RetentionSettings
) -> tuple[int, ...]:
    """The retained epochs that need not be any longer, oldest first.

    Kept are the newest ones, at least the very newest; tagged ones; and up to each age the oldest of each step. The steps
    stand still while time moves on, so an epoch kept for its step stays the one that is kept, until its age is up.
    """
    newest = {mark.epoch for mark in marks[-max(1, settings.newest) :]}
    kept = newest | set(tags.values())
    for age_ms, step_ms in settings.every_ms:
        kept |= {mark.epoch for mark in _oldest_of_each(marks, step_ms) if now_ms - mark.at_ms <= age_ms}
    return tuple(mark.epoch for mark in marks if mark.epoch not in kept)


def _oldest_of_each(marks: Sequence[EpochMark], step_ms: int) -> Iterable[EpochMark]:
    first: dict[int, EpochMark] = {}
    for mark in marks:
        first.setdefault(mark.at_ms // step_ms, mark)
    return first.values()
