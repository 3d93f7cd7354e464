"""Renders the result of every command as text."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from floodplain.cli.inspection import ColumnInfo, Inspection, TableInfo
from floodplain.cli.totals import CompactionTotals
from floodplain.store.rollback import RolledBack, TableRestored
from floodplain.store.verify import Verdict
from floodplain.versions.retention.garbage import Collected

_MOST_LINES = 20


def verdict(console: Console, location: str, verdict_: Verdict) -> None:
    checked = f"{verdict_.epochs} epochs, {verdict_.runs} runs, {decimal(verdict_.size_bytes)} checked"
    if verdict_.good:
        _line(console, f"[bold green]good[/]: {escape(location)}: {checked}")
        return
    good = "none" if verdict_.last_good_epoch is None else str(verdict_.last_good_epoch)
    count = len(verdict_.damages)
    _line(console, f"[bold red]damaged[/]: {escape(location)}: {count} {'damage' if count == 1 else 'damages'}; {checked}")
    _line(console, f"newest epoch without damage: {good}")
    for damage in verdict_.damages:
        last_good = "unknown" if damage.last_good_epoch is None else str(damage.last_good_epoch)
        touched = f" (touches epochs {_few(damage.epochs)})" if damage.epochs else ""
        _line(console, f"\n[bold]{escape(damage.file)}[/]")
        _line(console, f"  expected         {escape(damage.expected)}")
        _line(console, f"  found            {escape(damage.found)}")
        _line(console, f"  last good epoch  {last_good}{touched}")


def inspection(console: Console, shown: Inspection) -> None:
    _line(console, f"[bold]{escape(shown.location)}[/]  store {shown.store}, created {_time(shown.created_ms)}")
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(shown):
        facts.add_row(f"[dim]{name}[/]", escape(value))
    console.print(facts)
    if shown.operators:
        console.print(_operators(shown))
    if shown.changes:
        console.print(_changes(shown))
    if shown.controls:
        console.print(_controls(shown))
    if shown.tables:
        console.print(_tables(shown.tables))
        for table in shown.tables:
            console.print(_columns(table))
        console.print(_runs(shown.tables))
    if shown.epochs:
        console.print(_epochs(shown))
    console.print(_tiers(shown))


def compaction(console: Console, location: str, totals: CompactionTotals) -> None:
    if not totals.steps:
        _line(console, f"nothing worth compacting in {escape(location)}")
        return
    tables = ", ".join(f"{table} ({steps})" for table, steps in sorted(totals.tables.items()))
    _line(console, f"[bold green]compacted[/] {escape(location)} in {totals.steps} steps: {escape(tables)}")
    _line(console, f"  runs merged  {totals.runs_merged:,}")
    _line(console, f"  rows         {totals.rows_before:,} → {totals.rows_after:,}")
    _line(console, f"  bytes        {decimal(totals.bytes_before)} → {decimal(totals.bytes_after)}")


def collection(console: Console, location: str, collected: Collected) -> None:
    epochs = f"{len(collected.epochs)} epochs forgotten" + (f" ({_few(collected.epochs)})" if collected.epochs else "")
    _line(console, f"{escape(location)}: {epochs}")
    _line(console, f"  runs         {collected.runs:,} deleted, {decimal(collected.run_bytes)}")
    _line(
        console, f"  log          {collected.edits:,} edits and {collected.checkpoints:,} checkpoints deleted, "
        f"{decimal(collected.metadata_bytes)}"
    )  # fmt: skip
    _line(console, f"  pins         {collected.pins:,} expired")


def rollback(console: Console, location: str, done: RolledBack) -> None:
    has = "would have" if done.dry_run else "has"
    line = f"epoch {done.epoch} {has} the content of epoch {done.restored}, of {_time(done.restored_at_ms)}"
    _line(console, f"{escape(location)}: {line}")
    for table in done.tables:
        _line(console, f"  {escape(table.name):<12} {_restored(table)}")
    if done.batch_before != done.batch_after:
        after = f"continues after batch {done.batch_after}" if done.batch_after >= 0 else "is read from its beginning"
        _line(console, f"  input        {after}, instead of after batch {done.batch_before}")
    for name in sorted({*done.watermarks_before, *done.watermarks_after}):
        was, is_now = (marks.get(name) for marks in (done.watermarks_before, done.watermarks_after))
        if was != is_now:
            _line(console, f"  {escape(name):<12} {_maybe(was)} → {_maybe(is_now)}")
    if done.unpublished:
        _line(console, f"  output       {len(done.unpublished)} files of epoch {done.before} are not published and never will be")
    _line(console, f"What sinks published after epoch {done.restored} stays published. Rows of input that is read again are")
    _line(console, "published again, under new epoch numbers.")
    if not done.dry_run:
        _line(console, f"To undo: floodplain rollback {escape(location)} --to {done.before}")


def _restored(table: TableRestored) -> str:
    if table.dropped:
        return f"dropped: {table.rows_before:,} rows in {table.runs_before} runs"
    rows = f"{table.rows_before:,} → {table.rows_after:,} rows in runs, {table.runs_before} → {table.runs_after} runs"
    return rows + (", with its former schema" if table.redefined else "")


def _maybe(time_ms: int | None) -> str:
    return "none" if time_ms is None else _time(time_ms)


def bench(console: Console, result: dict[str, Any]) -> None:
    """A table with a section for each part of the result; nested values have dotted names."""
    grid = Table(title=f"bench {escape(str(result.get('bench', '')))}", title_justify="left")
    grid.add_column("")
    grid.add_column("what", overflow="fold")
    grid.add_column("value", justify="right", overflow="fold")
    for part, values in result.items():
        if isinstance(values, dict):
            for name, value in _flat(values):
                grid.add_row(part, escape(name), escape(_cell(value)))
            grid.add_section()
    console.print(grid)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def _facts(shown: Inspection) -> list[tuple[str, str]]:
    log = shown.log
    checkpoints = f"{len(log.checkpoints)}, the newest at {log.checkpoints[-1]}" if log.checkpoints else "none"
    facts = [
        ("epoch", f"{shown.epoch} (published {shown.published})"),
        ("log", f"at position {log.position}, stored from {log.oldest if log.oldest is not None else 'nowhere'}"),
        ("checkpoints", checkpoints),
        ("horizon", str(log.horizon)),
        ("key groups", str(shown.key_groups)),
        ("lease", _lease(shown)),
        ("tags", ", ".join(f"{tag} = epoch {epoch}" for tag, epoch in shown.tags.items()) or "none"),
        ("watermarks", ", ".join(f"{name} = {_time(at_ms)}" for name, at_ms in shown.watermarks.items()) or "none"),
    ]
    if shown.source:
        facts.append(("source", f"query {shown.source['query_id']}, batch {shown.source['batch_id']}"))
    return facts


def _lease(shown: Inspection) -> str:
    lease = shown.lease
    if lease is None:
        return "never taken"
    if not lease.expires_ms:
        return f"free (token {lease.token}, released by {lease.owner})"
    state = "held" if lease.held else "ended"
    return f"{state}: {lease.owner}, token {lease.token}, until {_time(lease.expires_ms)}"


def _tables(tables: tuple[TableInfo, ...]) -> Table:
    grid = Table("table", "shape", "ttl", title="Tables", title_justify="left")
    for name in ("runs", "rows in runs", "size"):
        grid.add_column(name, justify="right")
    for table in tables:
        ttl = f"{_duration(table.ttl_ms)} by {table.ttl_clock}" if table.ttl_ms else ""
        grid.add_row(escape(table.name), table.shape, ttl, f"{len(table.runs):,}", f"{table.rows:,}", decimal(table.size_bytes))
    return grid


def _operators(shown: Inspection) -> Table:
    grid = Table("operator", "kind", "slots", "what it does", "states", title="Operators", title_justify="left")
    for operator in shown.operators:
        states = ", ".join(f"{name}: {declaration}" for name, declaration in operator.states.items())
        slots = "" if operator.slots is None else str(operator.slots)
        grid.add_row(operator.name, operator.kind, slots, escape(" · ".join(operator.facts)), escape(states))
    return grid


def _changes(shown: Inspection) -> Table:
    title = "Changed jobs, newest first (rolling back to the epoch undoes it)"
    grid = Table("after epoch", "at", "what", title=title, title_justify="left")
    for change in shown.changes[::-1][:_MOST_LINES]:
        grid.add_row(str(change.epoch), _time(change.at_ms), escape(change.what))
    return grid


def _controls(shown: Inspection) -> Table:
    title = "Control operations, newest first"
    grid = Table("after epoch", "at", "operation", "run", "looked at", "decided", title=title, title_justify="left")
    for each in shown.controls[::-1][:_MOST_LINES]:
        decided = each.kind if each.kind == "update" else f"{each.kind} {each.decision or '(not in the log)'}"
        grid.add_row(str(each.epoch), _time(each.at_ms), each.name, each.run, escape(each.operator), escape(decided))
    return grid


def _columns(table: TableInfo) -> Table:
    title = f"Columns of {escape(table.name)} (schema {table.schema_id})"
    grid = Table("column", "role", "type", "default", "merge", "ttl", title=title, title_justify="left")
    for column in table.columns:
        ttl = _duration(column.ttl_ms) if column.ttl_ms else ""
        shown = [column.name, column.role, column.type, column.default or "", _merge(column), ttl]
        grid.add_row(*map(escape, shown))
    return grid


def _merge(column: ColumnInfo) -> str:
    return column.merge if column.merge_known else f"{column.merge} (not imported here)"


def _runs(tables: tuple[TableInfo, ...]) -> Table:
    grid = Table("table", "epochs", title="Runs of the newest epoch, newest first", title_justify="left")
    for name in ("rows", "size", "key groups"):
        grid.add_column(name, justify="right")
    grid.add_column("holds")
    grid.add_column("object", overflow="fold")
    for table in tables:
        for run in table.runs[:_MOST_LINES]:
            epochs = f"{run.first_epoch}–{run.last_epoch}" if run.first_epoch != run.last_epoch else str(run.first_epoch)
            holds = ", ".join(name for name, true in (("deletes", run.deletes), ("merges", run.merges)) if true)
            size = decimal(run.size_bytes)
            grid.add_row(escape(table.name), epochs, f"{run.rows:,}", size, str(run.key_groups), holds, run.object)
        if len(table.runs) > _MOST_LINES:
            grid.add_row(escape(table.name), f"… {len(table.runs) - _MOST_LINES} more: see --json")
    return grid


def _epochs(shown: Inspection) -> Table:
    grid = Table("epoch", "committed", "log position", "tags", title="Retained epochs, newest first", title_justify="left")
    newest = shown.epochs[::-1]
    for epoch in newest[:_MOST_LINES]:
        grid.add_row(str(epoch.epoch), _time(epoch.at_ms), str(epoch.position), ", ".join(epoch.tags))
    if len(newest) > _MOST_LINES:
        grid.add_row("…", f"{len(newest) - _MOST_LINES} more: see --json")
    return grid


def _tiers(shown: Inspection) -> Table:
    grid = Table("tier", "place", title="Sizes", title_justify="left")
    kinds = list(shown.tiers[0].kinds)
    for name in ("size", "live in runs", *kinds):
        grid.add_column(name, justify="right")
    for tier in shown.tiers:
        sizes = [f"{decimal(kind.size_bytes)} in {kind.objects:,}" for kind in tier.kinds.values()]
        grid.add_row(tier.tier, escape(tier.url), decimal(tier.size_bytes), decimal(tier.live_bytes), *sizes)
    return grid


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _few(numbers: tuple[int, ...]) -> str:
    if len(numbers) <= 8:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:3]))}, … {', '.join(map(str, numbers[-3:]))}"


def _time(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def _duration(duration_ms: int) -> str:
    for unit, length_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if duration_ms % length_ms == 0:
            return f"{duration_ms // length_ms} {unit}"
    return f"{duration_ms} ms"
