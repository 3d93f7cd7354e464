"""`floodplain bench`."""

from typing import Annotated

import typer

from floodplain.bench import registry
from floodplain.cli.options import EXIT_WRONG, AsJson, chosen_output, reported


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(registry.NAMES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: within five minutes on two cores.")] = False,
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Contenders or parts, separated by commas: only these, and Floodplain.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Run a benchmark on this machine and print its results.

    Needs the packages of the extra `bench`: pip install floodplain[bench]. All but state-types and slots run on Spark: they need
    the extra `spark` too, and a Java of version 17 or newer, which the extra `java` brings: pip install
    floodplain[bench,spark,java]

    Exit code: 0 if all answers that were checked are right, 1 if one is not, 2 if it could not run.
    With --json the last line of standard output is the result, as one JSON object.
    """
    output = chosen_output(as_json)
    with reported(output):
        result = registry.run(name, quick, [each.strip() for each in only.split(",") if each.strip()])
        output.bench(result)
    if not all(result["checks"].values()):
        raise typer.Exit(EXIT_WRONG)
