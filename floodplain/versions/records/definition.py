"""The definition of an operator as the log records it: what its state means, so that a changed job cannot misread it."""

from typing import Any

import msgspec


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was said of an operator."""

    value: Any
    """What is compared: numbers, texts, lists and maps of them."""
    told: str = ""
    """The same in words, for whoever reads a plan or a refusal; empty if it goes without saying."""
    since: int = 0
    """The last epoch that it did not take part in; 0 if it has been there from the start."""

    @property
    def text(self) -> str:
        return f"{self.told} since epoch {self.since + 1}" if self.since else self.told


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one operator was told to do."""

    kind: str
    parameters: dict[str, Parameter] = {}
    aggregates: dict[str, Parameter] = {}
    """By the name of the column that comes out."""
    states: dict[str, Parameter] = {}
    """Of a process function: how its states are declared, as far as their tables do not say it."""
    lateness: tuple[tuple[int, int], ...] = ()
    """Shorter lateness that it had before: ``(until, lateness)``, both in ms. Up to that watermark rows are judged by it."""

    @property
    def facts(self) -> list[str]:
        """In words: what it does first, then its aggregates, then the rest."""
        first, *rest = [*self.parameters.values()] or [Parameter(None)]
        return [each.text for each in (first, *self.aggregates.values(), *rest) if each.told]


class DefinitionChange(msgspec.Struct, frozen=True):
    """Something that a changed job did to the state when it was started."""

    epoch: int
    """The last epoch before it: going back to that one undoes it."""
    at_ms: int
    what: str
