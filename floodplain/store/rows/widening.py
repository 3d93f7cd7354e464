"""Which types can read what was written under others, at any depth.

Fields of structs are known by ids, as columns are, so that a field that was dropped and added again does not find its old
values. The ids of a column count up from 1 in the order in which its fields stand, outer ones before those inside them; they are
written down once they do not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import msgspec
import pyarrow as pa

from floodplain.errors import SchemaMismatch
from floodplain.versions.records.schema import Field, type_from_bytes, value_from_bytes

WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.uint8(): (pa.uint16(), pa.uint32(), pa.uint64(), pa.int16(), pa.int32(), pa.int64()),
    pa.uint16(): (pa.uint32(), pa.uint64(), pa.int32(), pa.int64()),
    pa.uint32(): (pa.uint64(), pa.int64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
    pa.date32(): (pa.date64(),),
}
SAME_HASH = {
    pa.int8(): (pa.int16(), pa.int32()),
    pa.int16(): (pa.int32(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}
"""Wider types under which equal keys stay equal, others stay different, and all keep their hash."""
_LONG_DIGITS = 18
"""Decimals of up to so many digits are hashed as one number, others as bytes."""
_MARKS = {b"variant", b"geometry", b"geography"}
"""In the metadata of a struct's field: the struct is one value, in a form of Spark's own."""


@dataclass(frozen=True, slots=True)
class TypeNode:
    """A type, or what stands inside one: the fields of a struct, the element of a list, the key and the value of a map."""

    name: str
    type: pa.DataType
    nullable: bool = True
    id: int = 0
    """Of a field of a struct."""
    parts: tuple["TypeNode", ...] = ()

    @property
    def kind(self) -> str:
        """What reads what: types of other kinds never do."""
        if is_one_value(self.type):
            return "value"
        if pa.types.is_struct(self.type):
            return "struct"
        if pa.types.is_fixed_size_list(self.type):
            return f"list of {self.type.list_size}"
        if pa.types.is_map(self.type):
            return "map"
        return "list" if self.parts else "value"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one type cannot read another."""

    path: str
    before: pa.DataType | None
    wanted: pa.DataType | None
    why: str

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path} cannot be added as {self.wanted}: {self.why}"
        become = f"become {self.wanted}" if self.wanted is not None else "go"
        return f"{self.path} is {self.before} and cannot {become}: {self.why}"


def is_one_value(type_: pa.DataType) -> bool:
    return pa.types.is_struct(type_) and any(_MARKS & set(field.metadata or {}) for field in type_)


def part_of(field: Field) -> TypeNode:
    """The type of a column with all that is inside it."""
    return _part(field.type, field.inner)


@lru_cache(maxsize=4096)
def _part(type_: bytes, inner: tuple[int, ...]) -> TypeNode:
    return _built("", type_from_bytes(type_), True, 0, iter(inner) if inner else count(1))


def _built(name: str, type_: pa.DataType, nullable: bool, id_: int, ids: Iterator[int]) -> TypeNode:
    is_struct = pa.types.is_struct(type_)
    parts = tuple(
        _built(part, inside.type, inside.nullable, next(ids) if is_struct else 0, ids) for part, inside in _inside(type_)
    )
    return TypeNode(name, type_, nullable, id_, parts)


def _inside(type_: pa.DataType) -> list[tuple[str, pa.Field]]:
    if pa.types.is_struct(type_):
        return [] if is_one_value(type_) else [(field.name, field) for field in type_]
    if pa.types.is_map(type_):
        return [("key", type_.key_field), ("value", type_.item_field)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return [("element", type_.value_field)]
    return []


def _ids(part: TypeNode) -> tuple[int, ...]:
    own = [part.id] if part.id else []
    return (*own, *(id_ for inside in part.parts for id_ in _ids(inside)))


def made_anew(before: Sequence[Field | TypeNode], now: Sequence[Field | TypeNode]) -> Iterator[str]:
    """Names that stand for something else now: what had it was dropped, and what has it is new. Neither was renamed."""
    were, are = {one.id for one in before}, {one.id for one in now}
    gone = {one.name for one in before if one.id not in are}
    return (one.name for one in now if one.name in gone and one.id not in were)


def fields_made_anew(before: TypeNode, now: TypeNode) -> Iterator[str]:
    """Paths of fields inside a type that were dropped and made anew."""
    by_id = now.kind == "struct"
    if before.kind != now.kind:
        return
    if by_id:
        yield from made_anew(before.parts, now.parts)
    had = {part.id if by_id else part.name: part for part in before.parts}
    for part in now.parts:
        if (key := part.id if by_id else part.name) in had:
            yield from (f"{part.name}.{path}" for path in fields_made_anew(had[key], part))


def check_ids(field: Field) -> None:
    """Raises ``SchemaMismatch`` if no change can have led to these ids."""
    fields = len(_ids(_part(field.type, ())))
    ids = field.inner or tuple(range(1, fields + 1))
    next_id = field.next_inner or fields + 1
    if len(ids) != fields or len(set(ids)) != fields or not all(0 < id_ < next_id for id_ in ids):
        raise SchemaMismatch(
            f"column {field.name}: ids {ids} are not different numbers below {next_id} for the {fields} fields inside it"
        )


def _next_id(field: Field) -> int:
    return field.next_inner or len(_ids(_part(field.type, ()))) + 1


def evolved(before: Field, wanted: Field) -> Field:
    """``wanted`` with ids: those of fields that ``before`` has, by name, and new ones for all others."""
    fresh = count(_next_id(before))
    part = _matched(part_of(before), part_of(wanted), fresh)
    ids, next_id = _ids(part), next(fresh)
    if ids == tuple(range(1, len(ids) + 1)) and next_id == len(ids) + 1:
        ids, next_id = (), 0
    return msgspec.structs.replace(wanted, id=before.id, inner=ids, next_inner=next_id)


def continued(field: Field, others: Iterable[Field]) -> Field:
    """``field`` as it is, but for its next id: behind those of the same column in all ``others``."""
    next_id = max([_next_id(field), *(_next_id(other) for other in others if other.id == field.id)])
    if next_id == _next_id(field):
        return field
    return msgspec.structs.replace(field, inner=_ids(part_of(field)), next_inner=next_id)


def _matched(before: TypeNode | None, wanted: TypeNode, fresh: Iterator[int]) -> TypeNode:
    known = {} if before is None or before.kind != wanted.kind else {part.name: part for part in before.parts}
    parts = []
    for part in wanted.parts:
        match = known.get(part.name)
        id_ = 0 if wanted.kind != "struct" else match.id if match is not None else next(fresh)
        parts.append(replace(_matched(match, part, fresh), id=id_))
    return replace(wanted, parts=tuple(parts))


def replacements(before: Field, wanted: Field) -> Iterator[Problem]:
    """Structs that ``wanted``, the next version, would replace by others: that is not meant, whatever types can read."""
    yield from _replacements(part_of(before), part_of(wanted), before.name)


def _replacements(before: TypeNode, wanted: TypeNode, path: str) -> Iterator[Problem]:
    by_id = wanted.kind == "struct"
    had = {part.id if by_id else part.name: part for part in before.parts}
    names = [part.id if by_id else part.name for part in wanted.parts]
    both = [(had[name], part) for name, part in zip(names, wanted.parts, strict=True) if name in had]
    if before.parts and wanted.parts and not both:
        why = "they have no field in common, so that nothing of what was written would be left"
        yield Problem(path, before.type, wanted.type, why)
    for one, other in both:
        yield from _replacements(one, other, f"{path}.{other.name}")


def changes_inside(before: Field, wanted: Field) -> bool:
    """Whether a type with others inside it is no longer the same."""
    return bool(part_of(before).parts) and before.arrow != wanted.arrow


def default_of(field: Field) -> pa.Scalar | None:
    return value_from_bytes(field.default) if field.default else None


def inside(default: pa.Scalar | None, part: TypeNode) -> pa.Scalar | None:
    """What the default of a struct says of one of its fields; None if it says nothing."""
    value = default[part.name] if default is not None and default.is_valid and part.id else None
    return value if value is not None and value.is_valid else None


def problems(before: Field, wanted: Field, *, as_key: bool = False) -> Iterator[Problem]:
    """Why ``wanted`` cannot read what was written under ``before``. ``as_key``: with equal keys and hashes, too."""
    yield from _problems(part_of(before), part_of(wanted), before.name, default_of(wanted), as_key)


def _problems(before: TypeNode, wanted: TypeNode, path: str, default: pa.Scalar | None, as_key: bool) -> Iterator[Problem]:
    if before == wanted:
        return
    if before.nullable and not wanted.nullable:
        yield Problem(path, before.type, wanted.type, "what was written may be null, and NOT NULL cannot read that")
    if pa.types.is_null(before.type):
        return
    if before.kind != wanted.kind or wanted.kind == "value":
        yield from _problems_of_value(before, wanted, path, as_key)
    elif wanted.kind == "struct":
        yield from _problems_of_struct(before, wanted, path, default, as_key)
    else:
        is_map = wanted.kind == "map"
        if pa.types.is_large_list(before.type) and not pa.types.is_large_list(wanted.type):
            yield Problem(path, before.type, wanted.type, _ONLY_WIDER)
        if is_map and wanted.type.keys_sorted and not before.type.keys_sorted:
            yield Problem(path, before.type, wanted.type, "the entries that were written are not in the order of their keys")
        for number, (one, other) in enumerate(zip(before.parts, wanted.parts, strict=True)):
            yield from _problems(one, other, f"{path}.{other.name}", None, as_key or (is_map and number == 0))


def _problems_of_value(before: TypeNode, wanted: TypeNode, path: str, as_key: bool) -> Iterator[Problem]:
    if before.type.equals(wanted.type, check_metadata=is_one_value(before.type) or is_one_value(wanted.type)):
        return
    if not widens(before.type, wanted.type):
        yield Problem(path, before.type, wanted.type, _ONLY_WIDER)
    elif as_key and not keeps_hash(before.type, wanted.type):
        yield Problem(path, before.type, wanted.type, "it is (part of) a key, and keys would have other hashes")


def _problems_of_struct(
    before: TypeNode, wanted: TypeNode, path: str, default: pa.Scalar | None, as_key: bool
) -> Iterator[Problem]:
    for type_, names in ((part.type, [field.name for field in part.parts]) for part in (before, wanted)):
        if len(set(names)) != len(names):
            yield Problem(path, before.type, wanted.type, f"fields are found by name, and {type_} has one twice")
            return
    had = {part.id: part for part in before.parts}
    for part in wanted.parts:
        below, filling = f"{path}.{part.name}", inside(default, part)
        if part.id in had:
            yield from _problems(had[part.id], part, below, filling, as_key)
        elif as_key and filling is not None:
            yield Problem(below, None, part.type, "in a key, what is added must be null")
        elif not part.nullable and filling is None:
            yield Problem(below, None, part.type, "it is NOT NULL, and what was written has no value for it")
    if as_key:
        yield from _problems_of_key(before, wanted, path)


def _problems_of_key(before: TypeNode, wanted: TypeNode, path: str) -> Iterator[Problem]:
    had, has = [part.id for part in before.parts], [part.id for part in wanted.parts]
    gone = [part for part in before.parts if part.id not in has]
    if gone:
        yield Problem(f"{path}.{gone[0].name}", gone[0].type, None, "keys that differ in it only would become equal")
    elif [id_ for id_ in has if id_ in had] != had:
        yield Problem(path, before.type, wanted.type, "it is (part of) a key, and in another order keys have other hashes")


_ONLY_WIDER = "only wider types can read what was written; use another name for what is new"


def widens(before: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of ``before``, which has no parts, is also one of ``wanted``."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(wanted):
        return wanted.scale >= before.scale and wanted.precision - wanted.scale >= before.precision - before.scale
    return wanted in WIDER.get(before, ())


def keeps_hash(before: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of ``before`` have the same hash as those of ``wanted``, which is wider."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(wanted):
        return before.scale == wanted.scale and (before.precision <= _LONG_DIGITS) == (wanted.precision <= _LONG_DIGITS)
    return wanted in SAME_HASH.get(before, ())
