"""Facts about an operator for ``explain``: its definition in short lines, and whether its input is pre-aggregated."""

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
    """What it does, its keys and its event time. ``recorded``: its definition in the log, once it runs."""
    return [short(fact) for fact in (recorded or described(step).recorded).facts]


def column_facts(columns: tuple[tuple[str, Any], ...], chosen: bool) -> list[str]:
    """The columns that a step selects, as users wrote them."""
    sides = [f"{'right' if made == 'true' else 'left'} side" for name, made in columns if name == RIGHT_SIDE]
    texts = [_column(name, made, chosen) for name, made in columns if name not in (RIGHT_SIDE, ALL)]
    return [*sides, short(", ".join(texts))] if texts else sides


def _column(name: str, made: Any, chosen: bool) -> str:
    if isinstance(made, Rest):
        return "all other columns" if made.but else "the whole row"
    text = expression(made)
    return text if text == name or name == AT or (chosen and name.startswith(PREFIX)) else f"{name} = {text}"


@dataclass(frozen=True)
class PreAggregation:
    """Whether rows are pre-aggregated (combined by key) before they are shuffled to an operator."""

    when: Literal["on", "auto", "off"]
    why: str = ""
    """Why it is off, or whether the next epoch does it."""
    exchanges: int | None = None
    """The number of shuffles that it adds to the one to the slots; None if that is not known before the schema is."""

    def __str__(self) -> str:
        by = {None: "", 0: ", in the tasks that read the rows", 1: ", by Spark with an exchange of its own"}[self.exchanges]
        return f"pre-aggregation before the exchange: {self.when}{f' ({self.why})' if self.why else ''}{by}"


def preaggregation_of(step: Keyed, running: Process | None, hindrance: str, next_epoch: bool | None) -> PreAggregation | None:
    """None for an operator that has no combiner: it needs every row. ``running``: the process, once it is bound to its schema.
    ``hindrance``: why rows cannot be pre-aggregated here. ``next_epoch``: whether the next epoch does it, if that is known."""
    partial = step.traits.partial
    if partial is None:
        return None
    combiner = traits_of(step.process if running is None else running).combiner
    later = running is None and step.traits.combines_when_bound
    if not partial or hindrance or (combiner is None and not later):
        return PreAggregation("off", hindrance)
    unknown = partial != "auto" or next_epoch is None
    why = "" if unknown else "in the next epoch" if next_epoch else "not in the next epoch"
    return PreAggregation(
        "auto" if partial == "auto" else "on", why, None if combiner is None else int(combiner.sql() is not None)
    )


def short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
