"""Renders what a state costs."""

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from floodplain.cost.report import CostReport

KINDS = ("puts", "gets", "lists", "heads", "deletes")


def cost(console: Console, shown: CostReport) -> None:
    epochs = f"{shown.epochs} epochs up to {shown.epoch}" if shown.epochs else "no epochs"
    prices, currency = shown.prices, escape(str(shown.prices["currency"]))
    dated = f"{prices['name']} ({prices['date']})" if prices["date"] else str(prices["name"])
    _line(console, f"[bold]{escape(shown.location)}[/]: {epochs}, one every {shown.interval_s:.3g} s ({shown.interval})")
    _line(console, f"prices: {escape(dated)}")
    if shown.rows:
        console.print(_table(shown))
    _line(console, f"an epoch  {shown.requests_per_epoch:,.1f} requests, {shown.cost_per_epoch:.3g} {currency}")
    stored = f"{decimal(shown.storage.total_bytes)} stored, {decimal(shown.storage.live_bytes)} of it live"
    _line(
        console,
        f"a month   {_money(shown.cost_per_month)} {currency}: requests {_money(shown.requests_per_month)}, "
        f"storage {_money(shown.storage_per_month)} ({stored})",
    )
    if shown.savings:
        _line(console, "what would lower it, each by itself and at most:")
    for saving in shown.savings:
        _line(console, f"  −{saving.percent:.0f} %  {escape(saving.what)}: {_money(saving.per_month)} {currency} a month less")
    for note in shown.notes:
        _line(console, f"[dim]{escape(note)}[/]")


def _table(shown: CostReport) -> Table:
    grid = Table("who", "tier", title="Mean of an epoch", title_justify="left")
    for name in (*KINDS, "read", "written", "waited", "hits", "misses", f"{shown.prices['currency']} a month"):
        grid.add_column(name, justify="right")
    for row in shown.rows:
        use = row.use
        kinds = [f"{getattr(use, kind) / shown.epochs:,.2f}" if getattr(use, kind) else "" for kind in KINDS]
        sizes = [decimal(round(size / shown.epochs)) if size else "" for size in (use.read_bytes, use.written_bytes)]
        waited = f"{use.waited_us / shown.epochs / 1000:,.1f} ms" if use.waited_us else ""
        cached = [f"{count / shown.epochs:,.1f}" if count else "" for count in (use.hits, use.misses)]
        grid.add_row(
            row.user, row.tier, *kinds, *sizes, waited, *cached, _money(row.cost_per_month) if row.cost_per_month else ""
        )
    return grid


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.2g}"


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)
