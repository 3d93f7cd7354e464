"""What is next: a trial of each, a control of each, then by share, as long as it fits into the time that is left."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.soak.outcome import FAILURES, Outcome


@dataclass
class Row:
    """A line of the table: how the trials of one fault came out, and what they took."""

    fault: str
    weight: float = 1.0
    control_every: int = 10
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    controls: int = 0
    controls_wrong: int = 0
    spent_s: float = 0.0
    longest_s: float = 0.0

    @property
    def tried(self) -> int:
        return sum(self.outcomes.values())

    @property
    def good(self) -> bool:
        """At least one trial, and nothing lost, repeated, wrong or unclear."""
        return self.tried > 0 and not self.controls_wrong and not any(self.outcomes[outcome] for outcome in FAILURES)

    def add(self, outcome: Outcome, took_s: float, *, control: bool = False) -> None:
        if control:
            self.controls += 1
            self.controls_wrong += outcome is not Outcome.OK
        else:
            self.outcomes[outcome] += 1
        self.spent_s += took_s
        self.longest_s = max(self.longest_s, took_s)

    def told(self) -> dict[str, str | int | float]:
        """As it stands in the JSON."""
        counts = {outcome.name.lower(): self.outcomes[outcome] for outcome in reversed(Outcome)}
        controls = {"controls": self.controls, "controls_wrong": self.controls_wrong}
        return {"fault": self.fault, "tried": self.tried, **counts, **controls, "seconds": round(self.spent_s, 1)}


def next_step(rows: Iterable[Row], left_s: float) -> tuple[Row, bool] | None:
    """The one to try next, and whether it is a control; None once there is no time for any.

    A trial is expected to take as long as the longest so far.
    """
    if left_s <= 0:
        return None
    rows = list(rows)
    for row in rows:
        if not row.tried:
            return row, False
    fitting = [row for row in rows if row.longest_s <= left_s]
    for row in fitting:
        if not row.controls:
            return row, True
    if not fitting:
        return None
    row = min(fitting, key=lambda row: row.spent_s / row.weight)
    return row, row.tried >= row.controls * row.control_every
