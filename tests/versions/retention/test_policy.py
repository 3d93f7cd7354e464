"""The retention policy: text goldens, and that it is steady."""

from hypothesis import given
from hypothesis import strategies as st

from floodplain.settings import RetentionSettings
from floodplain.versions.records.manifest import EpochMark
from floodplain.versions.retention.policy import epochs_to_drop

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def marks(*times_ms: int) -> list[EpochMark]:
    return [EpochMark(epoch, epoch * 2, at_ms, f"c{epoch}") for epoch, at_ms in enumerate(times_ms, 1)]


def kept(times_ms: list[int], settings: RetentionSettings, now_ms: int, tags: dict[str, int] | None = None) -> str:
    all_marks = marks(*times_ms)
    dropped = set(epochs_to_drop(all_marks, tags or {}, now_ms, settings))
    return "".join("." if mark.epoch in dropped else "K" for mark in all_marks)


def test_the_newest_whatever_their_age() -> None:
    settings = RetentionSettings(newest=3, every_ms=())
    assert kept([0] * 6, settings, 10**12) == "...KKK"
    assert kept([0] * 2, settings, 10**12) == "KK"
    assert kept([], settings, 0) == ""


def test_the_very_newest_is_always_kept() -> None:
    assert kept([0] * 4, RetentionSettings(newest=0, every_ms=()), 10**12) == "...K"


def test_tagged_ones_are_kept() -> None:
    assert kept([0] * 6, RetentionSettings(newest=1, every_ms=()), 10**12, {"a": 2, "b": 2, "c": 4}) == ".K.K.K"


def test_one_for_each_step_up_to_its_age() -> None:
    every_20_s = [second * 1000 for second in range(0, 600, 20)]
    settings = RetentionSettings(newest=2, every_ms=((5 * MINUTE_MS, MINUTE_MS),))
    assert kept(every_20_s, settings, 600_000) == "...............K..K..K..K..KKK"


def test_the_default_thins_out_with_age() -> None:
    every_10_min = [minutes * MINUTE_MS for minutes in range(0, 4 * 60, 10)]
    settings = RetentionSettings(newest=2)
    assert kept(every_10_min, settings, 4 * HOUR_MS) == "K.....K.....K.....KKKKKK"
    assert kept(every_10_min, settings, 26 * HOUR_MS) == "............K.....K...KK"


def test_a_clock_that_went_back_drops_nothing_by_age() -> None:
    assert kept([5000, 5001, 5002], RetentionSettings(newest=1, every_ms=((10, 1),)), 0) == "KKK"


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.integers(1, 4))
def test_it_is_steady(gaps: list[int], newest: int) -> None:
    """Applied after every epoch, it keeps no less than one per step that it would keep if applied once at the end."""
    settings = RetentionSettings(newest=newest, every_ms=((2_000, 100), (6_000, 1_000)))
    now_ms = 0
    held: list[EpochMark] = []
    history: list[EpochMark] = []
    for epoch, gap in enumerate(gaps, 1):
        now_ms += gap
        mark = EpochMark(epoch, epoch, now_ms, "")
        history.append(mark)
        held.append(mark)
        dropped = set(epochs_to_drop(held, {}, now_ms, settings))
        held = [mark for mark in held if mark.epoch not in dropped]
        assert not epochs_to_drop(held, {}, now_ms, settings)
    dropped = set(epochs_to_drop(history, {}, now_ms, settings))
    assert [mark.epoch for mark in held] == [mark.epoch for mark in history if mark.epoch not in dropped]
