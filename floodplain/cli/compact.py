"""`floodplain compact`."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.filesize import decimal

from floodplain.cli.interrupt import Interrupt
from floodplain.cli.options import (
    AsJson,
    FileMode,
    Imports,
    Location,
    StoreOptions,
    chosen_output,
    import_modules,
    opened,
    parsed_mode,
    parsed_size,
    reported,
)
from floodplain.cli.totals import CompactionTotals
from floodplain.settings import StoreSettings
from floodplain.store.compaction.compactor import Compacted
from floodplain.store.store import Store
from floodplain.tiers.redact import without_credentials
from floodplain.versions.records.user_names import UserNames


def compact(
    location: Location,
    full: Annotated[bool, typer.Option("--full", help="Merge everything into one run per band of key groups.")] = False,
    step_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Read at most about this much per step; bounds memory.")
    ] = "256MiB",
    watch: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Run until interrupted, checking for work at this interval.")
    ] = None,
    mode: FileMode = None,
    option: StoreOptions = None,
    import_: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Merge runs where that pays, in a process of its own.

    Needs no lease and never blocks a writer: a step that loses a race against another process changes nothing and
    is retried. After an interrupt the current step is finished first; a second interrupt ends it at once.
    """
    output = chosen_output(as_json)
    totals = CompactionTotals()
    with reported(output):
        size_bytes = parsed_size(step_bytes)
        import_modules(import_)
        with opened(location, option, StoreSettings(mode=parsed_mode(mode))) as store, Interrupt() as interrupt:
            if watch is not None:
                typer.echo(f"watching {without_credentials(location)} every {watch:g} s until interrupted", err=True)
            for step in _steps(store, full, size_bytes, watch, interrupt):
                totals.add(step)
                typer.echo(_step_text(step), err=True)
            totals.interrupted = interrupt.requested
        output.compaction(without_credentials(location), totals)


def _steps(store: Store, full: bool, step_bytes: int, watch: float | None, interrupt: Interrupt) -> Iterator[Compacted]:
    """Steps until there is nothing left to do, or for ever if watching; none after an interrupt."""
    while True:
        for step in store.compact(full=full, step_bytes=step_bytes):
            yield msgspec.structs.replace(step, table=UserNames(store.head.definitions).table(step.table))
            if interrupt.requested:
                return
        if watch is None or interrupt.wait_s(watch):
            return


def _step_text(step: Compacted) -> str:
    rows = f"{step.rows_before:,} → {step.rows_after:,} rows"
    return f"{step.table}: {step.runs} runs, {rows}, {decimal(step.bytes_before)} → {decimal(step.bytes_after)}"
