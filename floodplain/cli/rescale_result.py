"""The result of `floodplain rescale`, and how people read it."""

from typing import Literal

import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from floodplain.elasticity.requests import OperatorPlan
from floodplain.versions.records.groups import size

_MOST_SLOTS = 16


class Rescale(msgspec.Struct, frozen=True):
    """What was requested, or planned."""

    location: str
    status: Literal["planned", "requested", "done"]
    slots: dict[str, int]
    """Operator → the slots that it is to have."""
    position: int | None = None
    """Of the request in the log."""
    replaced: int | None = None
    """The position of an earlier request that waited and now does not count."""
    running: bool = False
    """Whether a query holds the lease."""
    plan: tuple[OperatorPlan, ...] = ()


def render_rescale(console: Console, shown: Rescale) -> None:
    wanted = ", ".join(f"{name}={count}" for name, count in shown.slots.items())
    if shown.status == "planned":
        _line(console, f"plan for {escape(shown.location)}: {wanted}. Nothing was requested")
        _line(console, "a running query plans by the rows that it has measured, so other key groups may move")
        console.print(_plan(shown.plan))
        return
    if shown.replaced is not None:
        _line(console, f"the request at position {shown.replaced} is replaced: the newest counts")
    if shown.status == "done":
        _line(console, f"[bold green]rescaled[/] {escape(shown.location)}: {wanted}")
        return
    when = "the query answers at its next boundary of epochs" if shown.running else "no query runs: the next start takes it up"
    _line(console, f"[bold green]requested[/] {escape(shown.location)}, position {shown.position}: {wanted}; {when}")


def _plan(plan: tuple[OperatorPlan, ...]) -> Table:
    grid = Table("operator", "slots", "key groups that move", "of state", "bytes by slot before", "after")
    for each in plan:
        moves = f"{size(each.moved)}: {', '.join(f'{low}–{high - 1}' for low, high in each.moved[:_MOST_SLOTS])}"
        moves += ", …" if len(each.moved) > _MOST_SLOTS else ""
        grid.add_row(
            *(each.operator, f"{each.slots_before} → {each.slots_after}", moves if each.moved else "0"),
            *(decimal(each.moved_bytes), _by_slot(each.bytes_before), _by_slot(each.bytes_after)),
        )
    return grid


def _by_slot(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(decimal, sizes[:_MOST_SLOTS])) + (", …" if len(sizes) > _MOST_SLOTS else "")


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)
