"""Finds the columns of a scan in a Parquet file, and gives them Spark's types at any depth.

Columns and fields are matched by name, with or without regard to case. Those that the file does not have are null; a struct
none of whose fields the file has is null where the file's struct is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodplain.errors import NotNative
from floodplain.sources.leaves import Calendars, Leaf, conversion

Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Bound:
    """How a column, or what is inside it, is read: from which leaves, and what makes the requested type of it."""

    leaves: tuple[int, ...]
    convert: Convert


@dataclass(frozen=True)
class FileColumns:
    """The columns of a scan in one file."""

    leaves: tuple[int, ...]
    """Numbers of the Parquet columns that are read."""
    converted: tuple[Convert | None, ...]
    """For each column of the scan; None if the file does not have it."""
    positions: tuple[int, ...]
    """For each column of the scan, its position among the columns that are read."""
    schema: pa.Schema

    def table(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The columns of the scan. ``rows``: of ``leaves``."""
        return [
            pa.nulls(len(rows), field.type) if convert is None else convert(rows.column(position))
            for field, convert, position in zip(self.schema, self.converted, self.positions, strict=True)
        ]


def bind_file(schema: pa.Schema, file: Any, case_sensitive: bool, calendars: Calendars) -> FileColumns:
    """Raises ``NotNative`` if a column cannot be read exactly as Spark does, or is ambiguous. ``file``: a ``ParquetFile``."""
    leaves = [Leaf.of(index, file.schema.column(index)) for index in range(len(file.schema))]
    binder = _Binder(case_sensitive, calendars)
    held = _with_leaves(list(file.schema_arrow), leaves)
    names = [field.name for field, _ in held]
    numbers = [binder.position(field.name, names) for field in schema]
    bound = [
        None if at is None else binder.bind(field.type, *held[at], held[at][0].name)
        for field, at in zip(schema, numbers, strict=True)
    ]
    return FileColumns(
        tuple(sorted({leaf for each in bound if each is not None for leaf in each.leaves})),
        tuple(None if each is None else each.convert for each in bound),
        tuple(_positions(numbers)[1]),
        schema,
    )


def _positions(numbers: Sequence[int | None]) -> tuple[list[int], list[int]]:
    """Which fields are read, and for each requested one its position among them; -1 for those that the file does not have."""
    kept = sorted({number for number in numbers if number is not None})
    return kept, [-1 if number is None else kept.index(number) for number in numbers]


def _with_leaves(fields: Sequence[pa.Field], leaves: Sequence[Leaf]) -> list[tuple[pa.Field, Sequence[Leaf]]]:
    """Each field with the leaves below it."""
    at, result = 0, []
    for field in fields:
        count = _leaf_count(field.type)
        result.append((field, leaves[at : at + count]))
        at += count
    if at != len(leaves):
        raise NotNative("the file has columns that Arrow and Parquet count differently: it is left to Spark")
    return result


def _leaf_count(type_: pa.DataType) -> int:
    if isinstance(type_, pa.BaseExtensionType):
        return _leaf_count(type_.storage_type)
    if pa.types.is_dictionary(type_) or type_.num_fields == 0:
        return 0 if pa.types.is_struct(type_) else 1
    if pa.types.is_map(type_):
        return _leaf_count(type_.key_type) + _leaf_count(type_.item_type)
    return sum(_leaf_count(type_.field(number).type) for number in range(type_.num_fields))


class _Binder:
    def __init__(self, case_sensitive: bool, calendars: Calendars) -> None:
        self._case_sensitive = case_sensitive
        self._calendars = calendars

    def position(self, name: str, names: Sequence[str]) -> int | None:
        """Which of the names is this one."""
        matches = [at for at, other in enumerate(names) if self._folded(other) == self._folded(name)]
        if len(matches) > 1:
            raise NotNative(f"the file has several columns {name}, {[names[at] for at in matches]}: it is left to Spark")
        return matches[0] if matches else None

    def _folded(self, name: str) -> str:
        return name if self._case_sensitive else name.lower()

    def bind(self, type_: pa.DataType, held: pa.Field, leaves: Sequence[Leaf], path: str) -> Bound:
        """``held``: what the file has for it. ``path``: of that in the file."""
        if isinstance(held.type, pa.BaseExtensionType):
            raise NotNative(f"column {path} has the type {held.type} of another system: it is left to Spark")
        if pa.types.is_struct(type_) and pa.types.is_struct(held.type):
            return self._bind_struct(type_, held.type, leaves, path)
        if pa.types.is_map(type_) and pa.types.is_map(held.type):
            return self._bind_map(type_, held.type, leaves, path)
        if pa.types.is_list(type_) and pa.types.is_list(held.type):
            return self._bind_list(type_, held, leaves, path)
        if type_.num_fields or len(leaves) != 1 or leaves[0].path != path:
            raise NotNative(f"column {path} of type {held.type} is not read as {type_} here: it is left to Spark")
        return Bound((leaves[0].index,), conversion(leaves[0], type_, self._calendars))

    def _bind_struct(self, type_: pa.DataType, held: pa.DataType, leaves: Sequence[Leaf], path: str) -> Bound:
        members = _with_leaves(list(held), leaves)
        numbers = [self.position(field.name, [member.name for member, _ in members]) for field in type_]
        bound = [
            None if at is None else self.bind(field.type, *members[at], f"{path}.{members[at][0].name}")
            for field, at in zip(type_, numbers, strict=True)
        ]
        kept, positions = _positions(numbers)
        read = tuple(leaf for each in bound if each is not None for leaf in each.leaves)
        if not kept:
            read = tuple(leaf.index for leaf in _least(members, path))

        def convert(structs: pa.Array) -> pa.Array:
            children = [
                pa.nulls(len(structs), field.type) if each is None else each.convert(structs.field(position))
                for field, each, position in zip(type_, bound, positions, strict=True)
            ]
            return pa.StructArray.from_arrays(children, fields=list(type_), mask=structs.is_null())

        return Bound(read, convert)

    def _bind_list(self, type_: pa.DataType, held: pa.Field, leaves: Sequence[Leaf], path: str) -> Bound:
        element = held.type.value_field
        repeated = _next_name(leaves, path)
        if repeated in ("array", f"{held.name}_tuple"):
            raise NotNative(f"column {path} is a list in the form of old writers: it is left to Spark")
        inner = self.bind(type_.value_type, element, leaves, f"{path}.{repeated}.{element.name}")

        def convert(lists: pa.Array) -> pa.Array:
            return _rebuilt(type_, lists, inner.convert(lists.values))

        return Bound(inner.leaves, convert)

    def _bind_map(self, type_: pa.DataType, held: pa.DataType, leaves: Sequence[Leaf], path: str) -> Bound:
        (key, keys), (item, items) = _with_leaves([held.key_field, held.item_field], leaves)
        entry = f"{path}.{_next_name(leaves, path)}"
        of_key = self.bind(type_.key_type, key, keys, f"{entry}.{_next_name(keys, entry)}")
        of_item = self.bind(type_.item_type, item, items, f"{entry}.{_next_name(items, entry)}")

        def convert(maps: pa.Array) -> pa.Array:
            both = [of_key.convert(maps.keys), of_item.convert(maps.items)]
            return _rebuilt(type_, maps, pa.StructArray.from_arrays(both, fields=[type_.key_field, type_.item_field]))

        return Bound((*of_key.leaves, *of_item.leaves), convert)


def _least(members: Sequence[tuple[pa.Field, Sequence[Leaf]]], path: str) -> Sequence[Leaf]:
    """Leaves of one field of a struct, enough to see where the struct is null."""
    flat = [leaves for field, leaves in members if not field.type.num_fields]
    chosen = (flat or [leaves for _, leaves in members])[:1]
    if not chosen:
        raise NotNative(f"column {path} is a struct without fields: it is left to Spark")
    return chosen[0]


def _next_name(leaves: Sequence[Leaf], path: str) -> str:
    """What follows a path in the paths of leaves below it."""
    start = f"{path}."
    if not leaves or not leaves[0].path.startswith(start):
        raise NotNative(f"column {path} has a form that is not read here: it is left to Spark")
    return leaves[0].path[len(start) :].partition(".")[0]


def _rebuilt(type_: pa.DataType, lists: pa.Array, values: pa.Array) -> pa.Array:
    """Lists or maps of the same lengths as before, of other values."""
    return pa.Array.from_buffers(type_, len(lists), lists.buffers()[:2], offset=lists.offset, children=[values])


def declared(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The same values as a type that may differ in which parts can be null. Requires: those that cannot are not."""
    if column.type == type_:
        return column
    if pa.types.is_struct(type_):
        children = [declared(column.field(number), type_.field(number).type) for number in range(type_.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=column.is_null())
    if pa.types.is_map(type_):
        both = [declared(column.keys, type_.key_type), declared(column.items, type_.item_type)]
        return _rebuilt(type_, column, pa.StructArray.from_arrays(both, fields=[type_.key_field, type_.item_field]))
    return _rebuilt(type_, column, declared(column.values, type_.value_type))
