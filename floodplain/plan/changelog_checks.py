"""What steps may do with rows that are changes: a row must look the same when it is taken back as when it came."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.expressions.columns import written
from floodplain.expressions.mentions import mentions
from floodplain.operators.changelog.changelog import WEIGHT, changelog_refused
from floodplain.operators.kernel.event_order import InOrder
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.operators.kernel.process import Process
from floodplain.operators.kernel.traits import traits_of
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema


def taken(process: Process, name: str, changes: bool, in_order: InOrder | None) -> Process:
    """What runs as operator ``name`` on rows that are changes, or not. Raises ``BadInput`` if it cannot."""
    if not changes:
        return process
    if in_order is not None:
        raise changelog_refused(
            name, "one that takes another back has the time of that one, which is over by then", "leave in_order out"
        )
    return traits_of(process).for_changes(name)


def check_passed_on(columns: Iterable[tuple[str, Any]]) -> None:
    """Raises ``BadInput`` if what is selected of changes lacks their weight or has another in its place."""
    chosen = dict(columns)
    if WEIGHT not in chosen or not _is_weight(chosen.pop(WEIGHT)):
        raise BadInput(
            f"select: the rows are changes, and without their column {WEIGHT} it cannot be told which of them take others back: "
            f"select {WEIGHT}, too, as it is; or call as_rows() before, and every change is a row of its own"
        )
    for name, made in chosen.items():
        check_unweighted(f"select: column {name}", made)


def check_weight(columns: pa.Schema) -> None:
    """Raises ``BadInput`` if these are what a transform makes of changes, and their weight is not among them."""
    if WEIGHT not in columns.names or columns.field(WEIGHT).type != pa.int64():
        raise BadInput(
            f"transform: the rows are changes, and must have their column {WEIGHT} as it was (a long) behind it, too; there are: "
            f"{', '.join(columns.names)}. Or call as_rows() before it, and every change is a row of its own"
        )


def check_unweighted(what: str, expression: Any) -> None:
    """Raises ``BadInput`` if an expression on changes goes by their weight."""
    if mentions(_text(expression), WEIGHT):
        raise BadInput(
            f"{what} goes by {WEIGHT}: the rows are changes, and one that takes another back must be like it. Operators count "
            f"with {WEIGHT} by themselves (sum('{WEIGHT}') is count()): leave it out; or call as_rows() before, and every change "
            "is a row of its own"
        )


def check_all_came(operator: KeyedOperator, sources: Iterable[KeyedOperator], head: Manifest) -> None:
    """Raises ``BadInput`` if the operator needs all changes and has not seen all that its sources have given, or other ones.

    ``head``: the state that they begin with.
    """
    for source in sources if operator.traits.needs_all_changes else ():
        anew = not any(schema.table in head.schemas for schema in source.tables.schemas)
        begun = any(head.runs.get(schema.table) for schema in source.tables.schemas)
        for schema in operator.tables.schemas:
            if (begun and not _has(head, schema)) or (anew and head.runs.get(schema.table)):
                raise BadInput(
                    f"operator {operator.name} takes the changes that {source.name} gives, and only one of them begins anew "
                    f"(table {schema.table}): rows could be taken back that never came, or never be taken back. Let both begin "
                    f"anew: start(reset=['{source.name}', '{operator.name}']); or give both other names, and drop the old ones "
                    "with start(drop=[…])"
                )


def _has(head: Manifest, schema: TableSchema) -> bool:
    old = head.schema(schema.table)
    return old is not None and {field.name for field in schema.values} <= {field.name for field in old.values}


def _is_weight(expression: Any) -> bool:
    return _text(expression).strip().strip("`").lower() == WEIGHT


def _text(expression: Any) -> str:
    text = written(expression)
    return str(expression) if text is None else text
