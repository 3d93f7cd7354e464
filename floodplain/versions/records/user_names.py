"""State under the names that users gave it.

Tables and columns keep names that paths could bear (I6). A PySpark processor may call its states and keys otherwise; then its
definition records how, and readers see that.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from floodplain.versions.records.definition import Definition
from floodplain.versions.records.schema import Field, TableSchema

SEPARATOR = "__"
"""Between the name of an operator and that of a state, in the name of a table."""
NULL_MARK = "__null"
"""Ends the name of the column that tells whether a value was set to null."""


def operator_of(table: str) -> str:
    """The operator that a table belongs to, by its name."""
    return table.partition(SEPARATOR)[0]


@dataclass(frozen=True)
class UserNames:
    """The names of tables and columns as users see them."""

    definitions: Mapping[str, Definition]

    def table(self, stored: str) -> str:
        """What users call this table."""
        operator, separator, state = stored.partition(SEPARATOR)
        shown = self._states.get(operator, {}).get(state, state)
        return f"{operator}{separator}{shown}"

    def stored(self, name: str, tables: Collection[str]) -> str | None:
        """The table that is meant: by its name, by what users call it, or by that of its state if only one operator has it."""
        if name in tables:
            return name
        meant = [table for table in tables if self.table(table) == name]
        meant = meant or [table for table in tables if self.table(table) == f"{operator_of(table)}{SEPARATOR}{name}"]
        return meant[0] if len(meant) == 1 else None

    def schema(self, schema: TableSchema) -> TableSchema:
        """With columns as users call them. Only names differ: whatever is read by field id is read as before."""
        operator = operator_of(schema.table)
        if operator not in self._states:
            return schema
        keys, states = self._keys(operator, schema), self._states[operator]
        values = [_state_column(field.name, states) for field in schema.values]
        shown = [*keys, *(field.name for field in schema.subkeys), *values]
        fields = _renamed(schema.fields, shown)
        first, then = len(schema.keys), len(schema.keys) + len(schema.subkeys)
        return msgspec.structs.replace(schema, keys=fields[:first], subkeys=fields[first:then], values=fields[then:])

    def in_text(self, text: str) -> str:
        """A message about tables and columns, with the names that users know."""
        for states in self._states.values():
            for stored, shown in sorted(states.items(), key=lambda pair: -len(pair[0])):
                text = text if stored == shown else text.replace(stored, shown)
        return text

    @cached_property
    def _states(self) -> dict[str, dict[str, str]]:
        return {operator: definition.names for operator, definition in self.definitions.items() if definition.spark is not None}

    def _keys(self, operator: str, schema: TableSchema) -> list[str]:
        spark = self.definitions[operator].spark
        fields: list[dict[str, Any]] = [] if spark is None else msgspec.json.decode(spark.keys)["fields"]
        stored = [field.name for field in schema.keys]
        return [field["name"] for field in fields] if len(fields) == len(stored) else stored


def _state_column(name: str, states: Mapping[str, str]) -> str:
    state = name.removesuffix(NULL_MARK)
    return f"{states[state]}{name.removeprefix(state)}" if state in states else name


def _renamed(fields: Iterable[Field], names: list[str]) -> tuple[Field, ...]:
    """One that would have the name of another one, as a state called like a key, keeps its own."""
    several, stored = Counter(names), tuple(fields)
    shown = tuple(
        field if several[name] > 1 else msgspec.structs.replace(field, name=name)
        for field, name in zip(stored, names, strict=True)
    )
    return shown if len({field.name for field in shown}) == len(shown) else stored
