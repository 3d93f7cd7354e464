"""Operators in words: what each does with its rows, as short facts, and whether rows are put together on the way to it."""

from dataclasses import dataclass
from typing import Any, Literal

from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.reserved_columns import ALL, AT, PREFIX, RIGHT_SIDE
from floodplain.operators.kernel.traits import traits_of
from floodplain.plan.definitions import described, expression
from floodplain.plan.nodes import Keyed, Rest
from floodplain.versions.records.definition import Definition

LONGEST = 70


def operator_facts(step: Keyed, recorded: Definition | None) -> list[str]:
    """What it does, by which keys and by which time. ``recorded``: what the log has of it, once it runs."""
    return [short(fact) for fact in (recorded or described(step).recorded).facts]


def column_facts(columns: tuple[tuple[str, Any], ...], chosen: bool) -> list[str]:
    """The columns that a step makes, under the names that users gave."""
    sides = [f"{'right' if made == 'true' else 'left'} side" for name, made in columns if name == RIGHT_SIDE]
    told = [_column(name, made, chosen) for name, made in columns if name not in (RIGHT_SIDE, ALL)]
    return [*sides, short(", ".join(told))] if told else sides


def _column(name: str, made: Any, chosen: bool) -> str:
    if isinstance(made, Rest):
        return "all other columns" if made.but else "the whole row"
    text = expression(made)
    return text if text == name or name == AT or (chosen and name.startswith(PREFIX)) else f"{name} = {text}"


@dataclass(frozen=True)
class Together:
    """Whether rows of a key are put together on the way to an operator, before they are exchanged."""

    when: Literal["on", "auto", "off"]
    why: str = ""
    """Why they are not, or what is known of the next epoch."""
    exchanges: int | None = None
    """How many exchanges it takes besides that to the slots; None if that is known only once the columns are."""

    def __str__(self) -> str:
        by = {None: "", 0: ", where they are read", 1: ", by Spark with an exchange of its own"}[self.exchanges]
        return f"rows put together before the exchange: {self.when}{f' ({self.why})' if self.why else ''}{by}"


def together(step: Keyed, running: Process | None, hindered: str, now: bool | None) -> Together | None:
    """None for an operator that needs every row. ``running``: the process once its columns are known. ``hindered``: why rows
    come as they are though the operator could do without. ``now``: whether the next epoch does it, if that is known."""
    asked = step.traits.partial
    if asked is None:
        return None
    combiner = traits_of(step.process if running is None else running).combiner
    later = running is None and step.traits.combines_when_bound
    if not asked or hindered or (combiner is None and not later):
        return Together("off", hindered)
    known = "" if asked != "auto" or now is None else "in the next epoch" if now else "not in the next epoch"
    return Together("auto" if asked == "auto" else "on", known, None if combiner is None else int(combiner.sql() is not None))


def short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
