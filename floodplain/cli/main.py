"""The command `floodplain`."""

from importlib.metadata import version
from typing import Annotated

import typer

from floodplain.cli.bench import bench
from floodplain.cli.compact import compact
from floodplain.cli.cost import cost
from floodplain.cli.gc import gc
from floodplain.cli.inspect import inspect
from floodplain.cli.rescale import rescale
from floodplain.cli.rollback import rollback
from floodplain.cli.scrub import scrub
from floodplain.cli.verify import verify

app = typer.Typer(
    name="floodplain",
    help="Inspect and maintain Floodplain stores: elastic, tiered, versioned state for PySpark streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"`{line}`" for line in lines)


app.command(
    epilog=_examples(
        "floodplain verify /srv/state",
        "floodplain verify s3://bucket/state --option endpoint=http://127.0.0.1:9000 --json",
    )
)(verify)
app.command(epilog=_examples("floodplain scrub /srv/state", "floodplain scrub s3://bucket/state --rate 5MB/s --json"))(scrub)
app.command(epilog=_examples("floodplain inspect /srv/state", "floodplain inspect /srv/state --json | jq .tables[].name"))(
    inspect
)
app.command(
    epilog=_examples(
        "floodplain cost s3://bucket/state --every 1s",
        "floodplain cost s3://bucket/state --prices prices.toml --json | jq .cost_per_month",
    )
)(cost)
app.command(
    epilog=_examples(
        "floodplain compact /srv/state",
        "floodplain compact /srv/state --full --step-bytes 64MiB",
        "floodplain compact s3://bucket/state --watch --budget 20MB/s --import my_pipeline.merges",
    )
)(compact)
app.command(epilog=_examples("floodplain gc /srv/state", "floodplain gc /srv/state --newest 4 --keep 1d/1h --keep 30d/1d"))(gc)
app.command(
    epilog=_examples(
        "floodplain rescale /srv/state 8 --plan",
        "floodplain rescale s3://bucket/state parse=2 join=8 --wait",
    )
)(rescale)
app.command(
    epilog=_examples("floodplain rollback /srv/state --to 41 --dry-run", "floodplain rollback /srv/state --tag before_upgrade")
)(rollback)

app.command(epilog=_examples("floodplain bench state-types --json", "floodplain bench state-types --quick"))(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"floodplain {version('floodplain')}")
        raise typer.Exit


@app.callback()
def _root(
    version_: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    app()
