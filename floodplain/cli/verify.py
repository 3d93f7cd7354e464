"""`floodplain verify`."""

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
from floodplain.settings import StoreSettings
from floodplain.store.verify import verify_blobs
from floodplain.tiers.open import open_blobs
from floodplain.tiers.redact import without_credentials


def verify(location: Location, option: StoreOptions = None, as_json: AsJson = False) -> None:
    """Check every byte that any retained epoch needs, and list the damaged files.

    Reads only. Safe while a writer, a compaction or a garbage collection runs. A store too damaged to be
    opened gets a verdict, too.

    Exit code: 0 if all is good, 1 if something is damaged, 2 if it could not be checked.
    """
    output = chosen_output(as_json)
    settings, clock, randomness = StoreSettings(), SystemClock(), SystemRandomness()
    with reported(output):
        blobs = open_blobs(
            location, settings, options=parsed_options(option), clock=clock, randomness=randomness, counters=Counters()
        )
        try:
            with RunProgress("verifying", clock) as progress:
                verdict = verify_blobs(blobs, settings=settings, clock=clock, randomness=randomness, progress=progress)
        finally:
            blobs.close()
        output.verdict(without_credentials(location), verdict)
        raise typer.Exit(EXIT_GOOD if verdict.good else EXIT_WRONG)
