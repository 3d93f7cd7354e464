"""`floodplain gc`."""

from typing import Annotated

import typer

from floodplain.cli.options import AsJson, FileMode, Location, StoreOptions, chosen_output, opened, parsed_mode, reported
from floodplain.errors import BadInput
from floodplain.settings import RetentionSettings, StoreSettings
from floodplain.state.durations import to_ms
from floodplain.tiers.redact import without_credentials


def gc(
    location: Location,
    newest: Annotated[int, typer.Option(min=1, help="Keep this many of the newest epochs, whatever their age.")] = 16,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="AGE/STEP", help="Up to this age keep one epoch per step. Repeatable. [default: 1h/1min, 1d/1h]"),
    ] = None,
    mode: FileMode = None,
    option: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Forget old epochs and delete the files that only they needed.

    Tagged and pinned epochs stay, and so do the files of epochs that are being written. The options decide which epochs are
    kept: pass the retention of the pipeline's own settings.
    """
    output = chosen_output(as_json)
    with reported(output):
        every_ms = RetentionSettings().every_ms if keep is None else tuple(_age_and_step(text) for text in keep)
        settings = StoreSettings(retention=RetentionSettings(newest, every_ms), mode=parsed_mode(mode))
        with opened(location, option, settings) as store:
            output.collection(without_credentials(location), store.collect_garbage())


def _age_and_step(text: str) -> tuple[int, int]:
    age, separator, step = text.partition("/")
    if not separator:
        raise BadInput(f"--keep {text!r} is not an age and a step: write it as in 1h/1min")
    age_ms, step_ms = to_ms(age, "age"), to_ms(step, "step")
    if not step_ms:
        raise BadInput(f"--keep {text!r}: the step must be longer than nothing")
    return age_ms, step_ms
