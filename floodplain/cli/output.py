"""The result of a command, as text for people or as one JSON object for programs."""

from abc import ABC, abstractmethod
from typing import Any

import msgspec
import typer
from rich.console import Console

from floodplain.cli import render, render_cost
from floodplain.cli.inspection import Inspection
from floodplain.cli.rescale_result import Rescale, render_rescale
from floodplain.cli.totals import CompactionTotals
from floodplain.cost.report import CostReport
from floodplain.errors import FloodplainError
from floodplain.store.compaction.compactor import Compacted
from floodplain.store.rollback import RolledBack
from floodplain.store.verify import Verdict
from floodplain.versions.retention.garbage import Collected

PIPED_WIDTH = 160


class Output(ABC):
    """A command calls one of these methods, once. Progress does not go through it, but to standard error."""

    @abstractmethod
    def verdict(self, location: str, verdict: Verdict) -> None: ...

    @abstractmethod
    def inspection(self, inspection: Inspection) -> None: ...

    @abstractmethod
    def compaction(self, location: str, totals: CompactionTotals) -> None: ...

    def compaction_step(self, step: Compacted) -> bool:  # noqa: ARG002
        """Of a watch: a step that was done. Whether it was printed."""
        return False

    @abstractmethod
    def collection(self, location: str, collected: Collected) -> None: ...

    @abstractmethod
    def rollback(self, location: str, done: RolledBack) -> None: ...

    @abstractmethod
    def cost(self, report: CostReport) -> None: ...

    @abstractmethod
    def rescale(self, shown: Rescale) -> None: ...

    @abstractmethod
    def bench(self, result: dict[str, Any]) -> None: ...

    @abstractmethod
    def error(self, error: FloodplainError) -> None: ...


class TextOutput(Output):
    def __init__(self) -> None:
        console = Console()
        self._console = console if console.is_terminal else Console(width=PIPED_WIDTH)

    def verdict(self, location: str, verdict: Verdict) -> None:
        render.verdict(self._console, location, verdict)

    def inspection(self, inspection: Inspection) -> None:
        render.inspection(self._console, inspection)

    def compaction(self, location: str, totals: CompactionTotals) -> None:
        render.compaction(self._console, location, totals)

    def collection(self, location: str, collected: Collected) -> None:
        render.collection(self._console, location, collected)

    def rollback(self, location: str, done: RolledBack) -> None:
        render.rollback(self._console, location, done)

    def cost(self, report: CostReport) -> None:
        render_cost.cost(self._console, report)

    def rescale(self, shown: Rescale) -> None:
        render_rescale(self._console, shown)

    def bench(self, result: dict[str, Any]) -> None:
        render.bench(self._console, result)

    def error(self, error: FloodplainError) -> None:
        typer.echo(f"error: {one_line(error)}", err=True)


class JsonOutput(Output):
    def verdict(self, location: str, verdict: Verdict) -> None:
        self._print({"location": location, "good": verdict.good, **msgspec.structs.asdict(verdict)})

    def inspection(self, inspection: Inspection) -> None:
        self._print(inspection)

    def compaction(self, location: str, totals: CompactionTotals) -> None:
        self._print({"location": location, **msgspec.structs.asdict(totals)})

    def compaction_step(self, step: Compacted) -> bool:
        self._print({"step": msgspec.structs.asdict(step)})
        return True

    def collection(self, location: str, collected: Collected) -> None:
        self._print({"location": location, **msgspec.to_builtins(collected)})

    def rollback(self, location: str, done: RolledBack) -> None:
        self._print({"location": location, **msgspec.to_builtins(done)})

    def cost(self, report: CostReport) -> None:
        self._print(report)

    def rescale(self, shown: Rescale) -> None:
        self._print(shown)

    def bench(self, result: dict[str, Any]) -> None:
        self._print(result)

    def error(self, error: FloodplainError) -> None:
        self._print({"error": one_line(error), "kind": type(error).__name__})

    def _print(self, result: object) -> None:
        typer.echo(msgspec.json.encode(result))


def one_line(error: FloodplainError) -> str:
    return " ".join(str(error).split())
