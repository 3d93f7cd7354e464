"""Processing time, checked against the store's clock: no row expires and no timer fires by a wrong machine clock."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from floodplain.errors import NotFound
from floodplain.store.rows import layout
from floodplain.tiers import paths
from floodplain.versions.log.history import History
from floodplain.versions.records.schema import PROCESSING_TIME

RECHECK_S = 60.0
"""How long a reading of the store's clock is extrapolated with our monotonic clock."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """The processing time of an epoch."""

    now_ms: int
    set_back: bool = False
    """Earlier epochs had a time that the store has not reached: this epoch sets it back."""


class StoreTime:
    """Knows how late it is by the store: the time that it gives to a file that was just written.

    A tier without a clock of its own shows nothing, and then the clock of this machine is all there is. In a directory of this
    machine both are the same one; there it only shows that an earlier driver's clock was ahead.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._shown: tuple[int, float] | None = None
        """The store's time in ms, and ours at that moment, in s."""
        self._fresh_s: float | None = None
        self._mute = False
        self._made_ms: int | None = None
        self.concern: str | None = None
        """What is wrong with a clock, as of the last moment that was asked for."""
        self._said = ""

    def moment(self, now_ms: int | None = None) -> Moment:
        """The processing time of an epoch that begins at this time by our clock, now if none is given.

        Never earlier than that of the last epoch, and neither of them further ahead of the store than the settings allow.
        """
        history = self._history
        limit_ms = history.settings.max_clock_ahead_ms
        now_ms = history.clock.now_ms() if now_ms is None else now_ms
        before_ms = history.head.watermarks.get(PROCESSING_TIME, layout.BEGINNING)
        shown_ms = self._shown_ms(max(now_ms, before_ms) - limit_ms, history.clock.now_ms() + limit_ms)
        if shown_ms is None or max(now_ms, before_ms) - limit_ms <= shown_ms:
            self._say("", None)
            return Moment(max(now_ms, before_ms))
        capped_ms = now_ms if now_ms - limit_ms <= shown_ms else shown_ms
        if before_ms - limit_ms <= shown_ms:
            self._say("ahead", _ahead(history, now_ms, shown_ms))
            return Moment(max(capped_ms, before_ms))
        if (sign := self._is_behind(shown_ms)) is not None:
            self._say("behind", _behind(history, before_ms, shown_ms, sign))
            return Moment(before_ms)
        self._say("set back", _set_back(history, before_ms, shown_ms))
        return Moment(capped_ms, set_back=True)

    def _shown_ms(self, least_ms: int, most_ms: int) -> int | None:
        """The time of the store. Asks it as little as can be: not while what is known of it is between these two. Its clock may
        have been set, too."""
        if self._mute:
            return None
        if self._shown is None:
            self._measure_last()
        now_s = self._history.clock.monotonic_s()
        if (known := self._known_ms(now_s)) is not None and least_ms <= known <= most_ms:
            return known
        if self._fresh_s is None or now_s - self._fresh_s >= RECHECK_S:
            self._measure()
        return self._known_ms(self._history.clock.monotonic_s())

    def _known_ms(self, now_s: float) -> int | None:
        return None if self._shown is None else self._shown[0] + int((now_s - self._shown[1]) * 1000)

    def _measure_last(self) -> None:
        """By the last edit, which is of any age: the store's time is that or later."""
        try:
            self._note(self._history.blobs.modified_ms(paths.log(self._history.head.position)))
        except NotFound:
            self._measure()

    def _measure(self) -> None:
        """By a file that is written for it."""
        blobs, name = self._history.blobs, paths.probe(self._history.randomness.nonce())
        blobs.put(name, b"what time is it")
        try:
            self._note(blobs.modified_ms(name))
        finally:
            blobs.delete([name])
        self._fresh_s = self._history.clock.monotonic_s()

    def _note(self, shown_ms: int | None) -> None:
        self._mute = shown_ms is None
        self._shown = None if shown_ms is None else (shown_ms, self._history.clock.monotonic_s())

    def _is_behind(self, shown_ms: int) -> str | None:
        """What speaks for it that the store's clock, which may be ours, is behind, and not that an earlier one was ahead.

        If it were set back then, rows would expire early once the clock is right.
        """
        limit_ms = self._history.settings.max_clock_ahead_ms
        soon = [mark for mark in self._history.head.epochs if shown_ms < mark.at_ms <= shown_ms + limit_ms]
        if soon:
            return f"epoch {soon[0].epoch} was committed at {as_text(soon[0].at_ms)}"
        if self._made_ms is None:
            self._made_ms = self._history.blobs.modified_ms(paths.FORMAT)
        made_ms = self._made_ms
        return f"the store was made at {as_text(made_ms)}" if made_ms is not None and made_ms > shown_ms + limit_ms else None

    def _say(self, kind: str, concern: str | None) -> None:
        self.concern = concern
        if concern is not None and kind != self._said:
            _log.warning("%s", concern)
        self._said = kind


def _ahead(history: History, now_ms: int, shown_ms: int) -> str:
    return (
        f"the clock of this machine says {as_text(now_ms)}, and the store at "
        f"{history.blobs.url} is at {as_text(shown_ms)}: that is "
        f"{_apart(now_ms, shown_ms)} ahead, so processing time is taken from the store, and nothing expires and no timer fires "
        f"by that clock. Set it, {_allow(history)}"
    )


def _set_back(history: History, before_ms: int, shown_ms: int) -> str:
    return (
        f"the state has the processing time {as_text(before_ms)}, and the store at "
        f"{history.blobs.url} is at {as_text(shown_ms)}: a "
        f"clock was {_apart(before_ms, shown_ms)} ahead. Processing time is set back to the store's, so that time to live goes "
        "on; what was written by that clock lives, and timers that were set by it wait, that much longer. Nothing is to be done, "
        "but if it is the clock of now that is wrong: stop the query and set it. To undo what that clock did, go back to an "
        "epoch before it (floodplain rollback)"
    )


def _behind(history: History, before_ms: int, shown_ms: int, sign: str) -> str:
    return (
        f"the state has the processing time {as_text(before_ms)}, and the store at "
        f"{history.blobs.url} is at {as_text(shown_ms)}: that "
        f"clock seems to be behind, as {sign}. Time to live and timers of processing time stand still until it has caught up: "
        "set it. If it is right, and an earlier one was ahead, go back to an epoch before that (floodplain rollback)"
    )


def _allow(history: History) -> str:
    return f"or allow for it with StoreSettings(max_clock_ahead_ms=…), {history.settings.max_clock_ahead_ms} now"


def _apart(later_ms: int, earlier_ms: int) -> str:
    seconds = (later_ms - earlier_ms) // 1000
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"


def as_text(at_ms: int) -> str:
    """A timestamp for messages."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms after 1970"
