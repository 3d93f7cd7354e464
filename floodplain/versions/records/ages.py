"""When positions of the log were reached: a few of them are remembered, ever fewer the older they are."""

Ages = tuple[tuple[int, int], ...]
"""(position, when it was reached in ms), ascending."""

FINEST_MS = 1000
"""Closer ones are not told apart."""


def aged(before: Ages, position: int, at_ms: int, above: int) -> Ages:
    """``before`` and this position, without those that need not be remembered any longer and those up to ``above``.

    For each age there is one that is older by half of it and a second at most, if any is that old. So there are few: about four
    for each doubling of the age of the oldest. A position was reached no later than those after it, whatever the clocks of their
    writers said.
    """
    kept = [(position, at_ms)]
    known = [(each, min(reached_ms, at_ms)) for each, reached_ms in before if each > above]
    for number in reversed(range(len(known))):
        newer_ms = kept[-1][1]
        if number == 0 or newer_ms - known[number - 1][1] > max((at_ms - newer_ms) // 2, FINEST_MS):
            kept.append(known[number])
    return tuple(reversed(kept))


def newest_of_age(ages: Ages, age_ms: int, now_ms: int) -> int:
    """The newest position that was reached so long ago; 0 if none was."""
    return max((position for position, reached_ms in ages if reached_ms + age_ms <= now_ms), default=0)
