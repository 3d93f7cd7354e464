"""`floodplain scrub`."""

from typing import Annotated

import typer

from floodplain.cli.options import (
    EXIT_GOOD,
    EXIT_WRONG,
    AsJson,
    Location,
    StoreOptions,
    chosen_output,
    parsed_options,
    reported,
)
from floodplain.cli.progress import RunProgress
from floodplain.clock import SystemClock, SystemRandomness
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings, rate_of
from floodplain.store import scrub as scrubbing
from floodplain.tiers.open import open_blobs


def scrub(
    location: Location,
    rate: Annotated[str, typer.Option(metavar="RATE", help="Read at most this much per second, as 50MB/s.")] = "50MB/s",
    option: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte that any retained epoch needs, slowly, while a query runs.

    Checks what `verify` checks, at a bounded rate, and reads from the disk or object store instead of caches where it can.
    Reads only. Epochs that are forgotten and runs that are compacted meanwhile are no damage.

    Exit code: 0 if all is good, 1 if something is damaged, 2 if it could not be checked.
    """
    output = chosen_output(as_json)
    settings, clock, randomness = StoreSettings(), SystemClock(), SystemRandomness()
    with reported(output):
        bytes_per_s = rate_of(rate)
        blobs = open_blobs(
            location, settings, options=parsed_options(option), clock=clock, randomness=randomness, counters=Counters()
        )
        try:
            with RunProgress("scrubbing", clock) as progress:
                verdict = scrubbing.scrub(
                    blobs, bytes_per_s, settings=settings, clock=clock, randomness=randomness, progress=progress
                )
        finally:
            blobs.close()
        output.verdict(location, verdict)
        raise typer.Exit(EXIT_GOOD if verdict.good else EXIT_WRONG)
