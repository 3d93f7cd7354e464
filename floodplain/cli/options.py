"""Command-line arguments and options that commands share, and their parsing."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from floodplain.cli.output import JsonOutput, Output, TextOutput
from floodplain.errors import BadInput, Corrupt, FloodplainError
from floodplain.settings import StoreSettings
from floodplain.store.store import Store

EXIT_GOOD, EXIT_WRONG, EXIT_FAILED = 0, 1, 2
"""Success; the store is damaged or an answer is wrong; the command could not run."""

Location = Annotated[str, typer.Argument(metavar="PATH", help="The store: a directory, or an s3://, gs:// or az:// URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="An option of the object store, as endpoint=http://host:9000. Repeatable."
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", help="Import a module first, so that the merges it registers are known. Repeatable."
    ),
]
FileMode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="OCTAL",
        help="Permissions of new files in a directory, as 640: pass the mode of the pipeline's settings.",
    ),
]


def chosen_output(as_json: bool) -> Output:
    return JsonOutput() if as_json else TextOutput()


@contextmanager
def reported(output: Output) -> Iterator[None]:
    """Turns errors of Floodplain into one line and an exit code; all others are bugs and keep their traceback."""
    try:
        yield
    except Corrupt as error:
        output.error(error)
        raise typer.Exit(EXIT_WRONG) from error
    except FloodplainError as error:
        output.error(error)
        raise typer.Exit(EXIT_FAILED) from error


@contextmanager
def opened(location: str, options: list[str] | None, settings: StoreSettings | None = None) -> Iterator[Store]:
    store = Store.open(location, options=parsed_options(options), settings=settings)
    try:
        yield store
    finally:
        store.close()


def parsed_options(pairs: list[str] | None) -> dict[str, str]:
    options = {}
    for text in pairs or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            # The value may be a secret, so only the key is shown.
            raise BadInput(f"--option {key!r} has no value: write it as KEY=VALUE")
        options[key] = value
    return options


def import_modules(names: list[str] | None) -> None:
    """Imports modules, also from the working directory, as ``python -m`` does."""
    here = str(Path.cwd())
    if names and here not in sys.path:
        sys.path.insert(0, here)
    for name in names or []:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise BadInput(f"--import {name}: {error}") from error


def parsed_mode(text: str | None) -> int | None:
    """``"640"`` as permissions."""
    try:
        return None if text is None else int(text, 8)
    except ValueError:
        raise BadInput(f"--mode {text!r} is not a number in octal: write it as in 640") from None
