"""The definition of an operator as the log records it: what its state means, so that a changed job cannot misread it."""

from typing import Any, Literal

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


class SparkVariable(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state variable of a PySpark processor, as its user declared it."""

    name: str
    """As the user wrote it: tables and columns may have to call it something else."""
    kind: Literal["value", "list", "map"]
    schemas: tuple[str, ...]
    """In Spark's JSON: of its values; of a map, of its keys and values."""
    ttl: bool = False
    """Whether it has a time to live."""
    former: tuple[str, ...] = ()
    """The schemas of its values before, oldest first, as Spark's state store has them."""
    ttl_ms: int = 0
    """Its time to live, if it has one. Releases that did not record it have none."""
    whole: bool = False
    """Whether a value of one field is stored as a struct all the same."""

    @property
    def told(self) -> str:
        """In words, for whoever looks at the state."""
        fields = [field for schema in self.schemas for field in msgspec.json.decode(schema)["fields"]]
        kinds = [field["type"] if isinstance(field["type"], str) else field["type"]["type"] for field in fields]
        columns = ", ".join(f"{field['name']} {kind}" for field, kind in zip(fields, kinds, strict=True))
        return f"{self.kind.capitalize()}State {columns}" + (", with a time to live" if self.ttl else "")


class SparkProcessor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A PySpark processor in Spark's own terms, for readers of its state, and for what Spark compares at a restart."""

    operator: str
    """What Spark calls the operator that runs it."""
    time_mode: str
    output_mode: str
    keys: str
    """The schema of the key, in Spark's JSON."""
    variables: dict[str, SparkVariable] = {}
    """By the name that tables have for them."""
    deleted: dict[str, SparkVariable] = {}
    """Variables that it declares and deletes at once, by their own names: Spark's metadata have them."""
    gone: dict[str, SparkVariable] = {}
    """Variables that it declared once and no longer does, by their own names."""
    encoding: str = ""
    """The encoding that Spark's state store would have: it decides how schemas may change. Releases that did not record it have
    none."""


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
    spark: SparkProcessor | None = None
    """Of a PySpark processor. States of releases that did not record it have none."""

    @property
    def names(self) -> dict[str, str]:
        """State as tables call it → as the user wrote it, where users may write what tables cannot."""
        return {} if self.spark is None else {stored: variable.name for stored, variable in self.spark.variables.items()}

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
