"""`floodplain rescale`."""

from typing import Annotated

import msgspec
import typer

from floodplain.cli.interrupt import Interrupt
from floodplain.cli.options import AsJson, FileMode, Location, StoreOptions, chosen_output, opened, parsed_mode, reported
from floodplain.cli.rescale_result import Rescale
from floodplain.elasticity import requests
from floodplain.errors import BadInput, Conflict
from floodplain.settings import StoreSettings
from floodplain.store.store import Store
from floodplain.tiers.redact import without_credentials

LOOK_S = 0.5
"""How often ``--wait`` looks for the answer."""


def rescale(
    location: Location,
    slots: Annotated[
        list[str],
        typer.Argument(metavar="SLOTS...", help="For all operators, as in 8, or for some by name: parse=2 join=8."),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="Show what would move, and request nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the query has done it.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait at most.")] = 60.0,
    mode: FileMode = None,
    option: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Request other numbers of slots of the query on this state, from any machine.

    The request goes into the log of the state. A running query does it at its next boundary of epochs, also when no data comes;
    a stopped one at its next start. Of several requests the newest counts. No state moves.
    """
    output = chosen_output(as_json)
    with reported(output), opened(location, option, StoreSettings(mode=parsed_mode(mode))) as store:
        wanted, named = _parsed(slots), without_credentials(location)
        if plan:
            plans = tuple(requests.plans(store.head, wanted))
            output.rescale(Rescale(named, "planned", {each.operator: each.slots_after for each in plans}, plan=plans))
            return
        made = requests.request(store.history, wanted)
        shown = Rescale(named, "requested", made.slots, made.position, made.replaced, made.held)
        if wait:
            _wait(store, made.position, timeout)
            shown = msgspec.structs.replace(shown, status="done")
        output.rescale(shown)


def _wait(store: Store, position: int, timeout_s: float) -> None:
    clock = store.history.clock
    until_s = clock.monotonic_s() + timeout_s
    with Interrupt() as interrupt:
        while not requests.answered(store.history.refresh(), position):
            if clock.monotonic_s() >= until_s or interrupt.wait_s(LOOK_S):
                raise Conflict(
                    f"the query has not answered the request at position {position} yet. It goes on waiting: a query that runs, "
                    "or starts, on this state does it, unless a newer request replaces it"
                )


def _parsed(slots: list[str]) -> int | dict[str, int]:
    if len(slots) == 1 and slots[0].isdecimal():
        return int(slots[0])
    counts = {}
    for text in slots:
        name, _, count = text.partition("=")
        if not name or not count.isdecimal():
            raise BadInput(f"{text!r} is neither a number of slots nor OPERATOR=NUMBER: write 8, or parse=2 join=8")
        counts[name] = int(count)
    return counts
