"""What became of the mutants."""

from collections import Counter
from typing import Any

from tests.random_mutants.equivalents import Equivalents

KILLED = ("killed", "timeout")
"""Both are noticed: a timeout is a mutant whose tests do not end."""

_OUTCOMES = {
    None: "unchecked",
    0: "survived",
    1: "killed",
    2: "killed",  # the tests cannot be collected
    5: "survived",
    33: "survived",  # no test reaches it
    -6: "killed",
    -11: "killed",
    -24: "timeout",
}


def outcome(code: int | None) -> str:
    """Of the code that the tests of a mutant ended with. Unclear is what could not be run; it is not counted as killed."""
    return _OUTCOMES.get(code, "unclear")


def summary(mutants: list[dict[str, Any]], equivalents: Equivalents) -> dict[str, Any]:
    """The figures. The score is of all mutants, those known to be equivalent included."""
    counts = Counter(outcome(each["code"]) for each in mutants)
    survivors = [
        {
            **{name: each[name] for name in ("file", "line", "diff")},
            "outcome": outcome(each["code"]),
            "equivalent": equivalents.why(each["file"], each["diff"]),
        }
        for each in mutants
        if outcome(each["code"]) not in (*KILLED, "unchecked")
    ]
    killed = sum(counts[each] for each in KILLED)
    return {
        "mutants": len(mutants),
        "killed": counts["killed"],
        "survived": counts["survived"] + counts["unclear"],
        "timeout": counts["timeout"],
        "unchecked": counts["unchecked"],
        "equivalent": sum(each["equivalent"] is not None for each in survivors),
        "score": round(killed / max(1, len(mutants)), 4),
        "survivors": survivors,
    }
