"""`floodplain compact`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, TypeAlias

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
    reported,
)
from floodplain.cli.output import one_line
from floodplain.cli.totals import CompactionTotals
from floodplain.clock import SystemClock
from floodplain.errors import Conflict, NoSpace, Unavailable
from floodplain.settings import CacheSettings, StoreSettings, rate_of, size_of
from floodplain.store.compaction.budget import Budget
from floodplain.store.compaction.compactor import Compacted
from floodplain.store.store import Store
from floodplain.tiers.redact import without_credentials
from floodplain.versions.records.user_names import UserNames

Work: TypeAlias = Callable[[], Iterator[Compacted]]
PASSING = (Unavailable, Conflict, NoSpace)


def compact(
    location: Location,
    full: Annotated[bool, typer.Option("--full", help="Merge everything into one run per band of key groups.")] = False,
    step_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Read at most about this much per step; bounds memory.")
    ] = "256MiB",
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM or SIGINT.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="With --watch: look for work again after this time.")
    ] = 5.0,
    budget: Annotated[
        str | None, typer.Option(metavar="RATE", help="Read and write at most this much per second, as 20MB/s.")
    ] = None,
    cache: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="A cache of this machine, as in the CacheSettings of a query.")
    ] = None,
    cache_size: Annotated[str, typer.Option(metavar="SIZE", help="Bound of the cache.")] = "1GiB",
    mode: FileMode = None,
    option: StoreOptions = None,
    import_: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Merge runs where that pays, in a process of its own.

    Needs no lease and never blocks a writer: a step that loses a race against another process changes nothing and
    is retried. After SIGTERM or SIGINT the current step is finished first, and the exit code is 0; the second such signal ends
    it at once. With --watch, --json prints one line per step and the totals as the last line.

    Pass the cache of a query that runs on this machine: then what is merged is read from there, and the query finds the
    result there.
    """
    output = chosen_output(as_json)
    totals = CompactionTotals()
    with reported(output):
        import_modules(import_)
        rate = None if budget is None else rate_of(budget)
        settings = StoreSettings(
            mode=parsed_mode(mode), cache=None if cache is None else CacheSettings(cache, size_of(cache_size))
        )
        with opened(location, option, settings) as store, Interrupt() as interrupt:
            if watch:
                typer.echo(f"watching {without_credentials(location)} every {every:g} s until interrupted", err=True)
            pace = Budget(rate, SystemClock(), lambda: interrupt.requested)
            work = partial(store.compact, full=full, step_bytes=size_of(step_bytes), budget=pace)
            for step in _watched(store, work, every, interrupt) if watch else _once(store, work, interrupt):
                totals.add(step)
                if not (watch and output.compaction_step(step)):
                    typer.echo(_step_text(step), err=True)
            totals.interrupted = interrupt.requested
        output.compaction(without_credentials(location), totals)


def _once(store: Store, work: Work, interrupt: Interrupt) -> Iterator[Compacted]:
    """Steps until there is nothing left to do; none after an interrupt."""
    for step in work():
        yield msgspec.structs.replace(step, table=UserNames(store.head.definitions).table(step.table))
        if interrupt.requested:
            return


def _watched(store: Store, work: Work, every_s: float, interrupt: Interrupt) -> Iterator[Compacted]:
    """Steps for ever; what fails for a while is tried again."""
    while not interrupt.requested:
        try:
            yield from _once(store, work, interrupt)
        except PASSING as error:
            typer.echo(f"tried again in {every_s:g} s: {one_line(error)}", err=True)
        interrupt.wait_s(every_s)


def _step_text(step: Compacted) -> str:
    rows = f"{step.rows_before:,} → {step.rows_after:,} rows"
    return f"{step.table}: {step.runs} runs, {rows}, {decimal(step.bytes_before)} → {decimal(step.bytes_after)}"
