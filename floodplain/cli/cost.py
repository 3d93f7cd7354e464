"""`floodplain cost`."""

from pathlib import Path
from typing import Annotated

import typer

from floodplain.cli.options import AsJson, Location, StoreOptions, chosen_output, opened, reported
from floodplain.cost.report import cost_of
from floodplain.prices import Prices
from floodplain.state.durations import interval_s


def cost(
    location: Location,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your own prices, as TOML or JSON. [default: list prices of the provider]"),
    ] = None,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="As if an epoch came so often, as in 1s. [default: as measured]")
    ] = "",
    option: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show what a state costs: requests, bytes and waits by operator and tier, per epoch and month, and what would lower it.

    Counts are those that its epochs have recorded, from the oldest retained one to the newest; storage is what is stored now.
    Reads two manifests and lists the objects.
    """
    output = chosen_output(as_json)
    with reported(output):
        table = None if prices is None else Prices.load(prices)
        seconds = interval_s(every, "--every") if every else None
        with opened(location, option) as store:
            output.cost(cost_of(store, location, prices=table, interval_s=seconds))
