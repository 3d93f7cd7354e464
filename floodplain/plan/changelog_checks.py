"""What steps may do with a changelog: a retraction must be equal to the row that it retracts."""

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
    """The process to run as operator ``name``: on a changelog, its retractable form. Raises ``BadInput`` if it has none."""
    if not changes:
        return process
    if in_order is not None:
        raise changelog_refused(
            name, "a retraction has the time of the row that it retracts, which the watermark has passed", "omit in_order"
        )
    return traits_of(process).for_changes(name)


def check_passed_on(columns: Iterable[tuple[str, Any]]) -> None:
    """Raises ``BadInput`` if columns selected from changes lack their weight, or replace it."""
    chosen = dict(columns)
    if WEIGHT not in chosen or not _is_weight(chosen.pop(WEIGHT)):
        raise BadInput(
            f"select: the rows are changes, and without their column {WEIGHT} retractions cannot be told from other rows: "
            f"select {WEIGHT}, too, as it is; or call as_rows() before, and every change is a row of its own"
        )
    for name, made in chosen.items():
        check_unweighted(f"select: column {name}", made)


def check_weight(columns: pa.Schema) -> None:
    """Raises ``BadInput`` if the output columns of a transform of changes lack their weight."""
    if WEIGHT not in columns.names or columns.field(WEIGHT).type != pa.int64():
        raise BadInput(
            f"transform: the rows are changes, and must have their column {WEIGHT} as it was (a long) behind it, too; there are: "
            f"{', '.join(columns.names)}. Or call as_rows() before it, and every change is a row of its own"
        )


def check_unweighted(what: str, expression: Any) -> None:
    """Raises ``BadInput`` if an expression on changes reads their weight."""
    if mentions(_text(expression), WEIGHT):
        raise BadInput(
            f"{what} goes by {WEIGHT}: the rows are changes, and a retraction must equal the row it retracts. Operators count "
            f"with {WEIGHT} by themselves (sum('{WEIGHT}') is count()): omit it; or call as_rows() before, and every change "
            "is a row of its own"
        )


def check_all_came(operator: KeyedOperator, sources: Iterable[KeyedOperator], head: Manifest) -> None:
    """Raises ``BadInput`` if the operator needs all changes of its sources and its state is not of the same ones.

    ``head``: the state from which they start.
    """
    for source in sources if operator.traits.needs_all_changes else ():
        anew = not any(schema.table in head.schemas for schema in source.tables.schemas)
        begun = any(head.runs.get(schema.table) for schema in source.tables.schemas)
        for schema in operator.tables.schemas:
            if (begun and not _has(head, schema)) or (anew and head.runs.get(schema.table)):
                raise BadInput(
                    f"operator {operator.name} takes the changes that {source.name} gives, and only one of them begins anew "
                    f"(table {schema.table}): rows could be retracted that never came, or never be retracted. Let both begin "
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
