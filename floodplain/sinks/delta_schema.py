"""Whether files of a schema can become files of a Delta table, and whether its schema must be merged for that."""

from collections.abc import Sequence
from typing import Any

from floodplain.errors import SchemaMismatch

_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_UNCHECKED = ("delta.constraints.", "delta.columnMapping.mode")


def check_names(names: Sequence[str]) -> None:
    """Raises ``SchemaMismatch`` if two names differ in case only: Delta does not distinguish them."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SchemaMismatch(
                f"columns {other} and {name} of the output differ in case only, and Delta ignores case: rename one of them"
            )


def check_table(table: Any, where: str) -> None:
    """Raises ``SchemaMismatch`` unless files that Delta did not write itself can be added to the table."""
    metadata = table.metadata()
    if metadata.partition_columns:
        raise SchemaMismatch(f"{where} is partitioned by {', '.join(metadata.partition_columns)}: use one that is not")
    for field in table.schema().fields:
        rules = [name for name in field.metadata if name in _RULES]
        if rules:
            raise SchemaMismatch(
                f"column {field.name} of {where} has {', '.join(rules)}, which this sink does not enforce: use another table"
            )
    for name, value in metadata.configuration.items():
        if name.startswith(_UNCHECKED) and value != "none":
            raise SchemaMismatch(f"{where} has {name}={value}, which this sink does not enforce: use another table")


def needs_merge(table: Any, output: Any, where: str, *, merge: bool) -> bool:
    """Whether the schema ``output`` has columns or fields that the table lacks.

    Raises ``SchemaMismatch`` if it does and ``merge`` is false, or if the schemas cannot be merged. With ``merge``, columns that
    the output lacks are null in its rows; without it, they are refused, too.
    """
    theirs = {field.name: field for field in table.schema().fields}
    ours = {field.name: field for field in output.fields}
    for name in sorted(theirs.keys() ^ ours.keys()):
        if not merge:
            raise SchemaMismatch(_differs(name, "the output" if name in ours else where))
        _check_alone(name, theirs, where)
    for name, field in ours.items():
        if name in theirs:
            _check_same(field, theirs[name], where, merge=merge)
    return any(name not in theirs or str(theirs[name].type) != str(field.type) for name, field in ours.items())


def _differs(name: str, whose: str) -> str:
    return (
        f"column {name} is in {whose} only: write('delta', path=…, merge_schema=True) adds new columns to the table and leaves "
        "those that the output lacks null; or name another table or output"
    )


def _check_alone(name: str, theirs: dict[str, Any], where: str) -> None:
    """Checks a column that only the table or only the output has."""
    if name in theirs:
        if not theirs[name].nullable:
            raise SchemaMismatch(f"column {name} of {where} is not nullable, and the output does not have it: add it")
        return
    alike = next((other for other in theirs if other.lower() == name.lower()), None)
    if alike is not None:
        raise SchemaMismatch(f"column {name} differs from {alike} of {where} in case only, and Delta ignores case: rename it")


def _check_same(ours: Any, theirs: Any, where: str, *, merge: bool) -> None:
    if not (str(ours.type) == str(theirs.type) or (merge and _mergeable(ours.type, theirs.type))):
        hint = "" if not merge else ": merge_schema adds columns and does not change types"
        raise SchemaMismatch(f"column {ours.name} of {where} is {theirs.type}, the output has {ours.type}{hint}")
    if ours.nullable and not theirs.nullable:
        raise SchemaMismatch(f"column {ours.name} of {where} is not nullable, and the output may have nulls")


def _mergeable(ours: Any, theirs: Any) -> bool:
    """Whether the types are equal, or structs that differ only in fields that one of them lacks."""
    if not (getattr(ours, "type", None) == getattr(theirs, "type", None) == "struct"):
        return str(ours) == str(theirs)
    known = {field.name: field.type for field in theirs.fields}
    return all(field.name not in known or _mergeable(field.type, known[field.name]) for field in ours.fields)
