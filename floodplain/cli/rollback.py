"""`floodplain rollback`."""

from typing import Annotated

import typer

from floodplain.cli.options import AsJson, FileMode, Location, StoreOptions, chosen_output, opened, parsed_mode, reported
from floodplain.settings import StoreSettings
from floodplain.tiers.redact import without_credentials


def rollback(
    location: Location,
    to: Annotated[
        int | None, typer.Option("--to", metavar="EPOCH", help="The epoch to roll back to; it must be retained.")
    ] = None,
    tag: Annotated[str | None, typer.Option(metavar="NAME", help="The epoch that has this tag.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Roll back even if a writer holds the lease; that writer is fenced.")
    ] = False,
    drop_output: Annotated[
        bool, typer.Option("--drop-output", help="Roll back even if output of the last epoch is not published; it never will be.")
    ] = False,
    mode: FileMode = None,
    option: StoreOptions = None,
    as_json: AsJson = False,
) -> None:
    """Roll back to an epoch: its state becomes the state of a new epoch, by one edit of the log.

    Tables, input position, watermarks and counts are those of that epoch again; the next start continues to read the input from
    there. Rolling back to the epoch before undoes it. Output that sinks have published stays published, and rows that are read
    again are published again, under new epoch numbers.
    """
    output = chosen_output(as_json)
    with reported(output), opened(location, option, StoreSettings(mode=parsed_mode(mode))) as store:
        done = store.rollback(to, tag=tag, force=force, drop_output=drop_output, dry_run=dry_run)
        output.rollback(without_credentials(location), done)
