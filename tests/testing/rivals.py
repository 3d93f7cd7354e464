"""Drivers that are superseded at any moment, and sinks that refuse: for scripts of the test kit."""

from collections.abc import Callable, Sequence

from floodplain.errors import Fenced
from floodplain.testing.faults import CrashPoint
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit
from floodplain.tiers import paths

Make = Callable[[], PipelineKit]


def superseded_everywhere(make: Make, script: Sequence[KitEpoch]) -> int:
    """Play a script with another driver that takes over before each step in turn, and after each: what a driver looks at between
    two steps, it may do so before or after it was superseded.

    The one before goes on from there until it finds out. The new one does first what that one was at, then the rest of the
    script. Returns how many points there were; raises ``AssertionError`` if output or state is not the same in the end.
    """
    kit = make()
    parts, untouched = _play(kit, script, None), kit.outcome()
    points = [CrashPoint(step, when) for step in _steps(kit, parts) for when in ("before", "after")]
    for point in points:
        _play(kit, script, point)
        assert kit.outcome() == untouched, f"a driver was superseded {point.when} step {point.step}"
    return len(points)


def _steps(kit: PipelineKit, parts: Sequence[range]) -> list[int]:
    """But for those of probes, before which nothing was done."""
    return [step for part in parts for step in part if paths.PROBES not in kit.steps.taken[step]]


def _play(kit: PipelineKit, script: Sequence[KitEpoch], point: CrashPoint | None) -> list[range]:
    kit.wipe()
    if point is not None:
        kit.crash_at(point, kit.restart)
    parts = []
    for act in (kit.restart, *(lambda part=part: kit.play([part]) for part in script)):
        first = len(kit.steps.taken)
        try:
            act()
        except Fenced:
            assert point is not None
            if act == kit.restart:
                kit.restart()  # the kit goes on with the driver that was last to start, and that one was superseded
        parts.append(range(first, len(kit.steps.taken)))
    return parts


def refused_everywhere(make: Make, script: Sequence[KitEpoch]) -> int:
    """Play a script with a sink that refuses each publishing in turn, once. The driver stays, and goes on with the next part.

    Returns how many there were; raises ``AssertionError`` if output or state is not the same in the end.
    """
    kit = make()
    _play(kit, script, None)
    untouched, epochs = kit.outcome(), range(1, kit.store.head.epoch + 1)
    published = [step for step, name in enumerate(kit.steps.taken) if name.startswith("publish ")]
    for step in published:
        _play_refused(kit, script, step)
        assert kit.outcome() == untouched, f"a sink refused step {step}"
        unpublished = [(name, epoch) for name in kit.sinks for epoch in epochs if epoch not in kit.sinks[name].epochs]
        assert not unpublished, f"a sink refused step {step}: these epochs were never published: {unpublished}"
    return len(published)


def _play_refused(kit: PipelineKit, script: Sequence[KitEpoch], step: int) -> None:
    kit.wipe()
    kit.restart()
    kit.crash_at(CrashPoint(step, "before"), _refuse)
    for part in script:
        try:
            kit.play([part])
        except OSError:
            assert step < len(kit.steps.taken)
    kit.restart()


def _refuse() -> None:
    raise OSError("no space left")
