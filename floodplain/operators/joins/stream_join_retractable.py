"""Joins of changelogs: a retracted row retracts its pairs.

The state is a multiset of rows for each side. An epoch reads the rows of the keys that have changes. The multiplicity of a pair
is the product of the multiplicities of its rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.operators.changelog.changelog import WEIGHT, weights_of
from floodplain.operators.changelog.multiset import Multiset, multiset_state
from floodplain.operators.joins.columns import PACKED, JoinColumns, SideColumns, join_columns
from floodplain.operators.joins.match import partners
from floodplain.operators.joins.stream_join import PADDED, How
from floodplain.operators.kernel.batch import Batch
from floodplain.operators.kernel.context import BatchContext
from floodplain.operators.kernel.definition import OperatorSpec, ParameterSpec, Written, free
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.reserved_columns import RIGHT_SIDE
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import State
from floodplain.structs import fields_of

_EMPTY = "no_columns"
"""A placeholder column for a side that has only its key."""


@dataclass(frozen=True)
class RetractableJoin(KeyedBatchProcess, OperatorTraits):
    """A join of changelogs, before it is bound to a schema."""

    how: How
    suffixes: tuple[str, str] | None = None
    changes: tuple[bool, bool] = (True, True)
    """Of each side, whether it is a changelog."""

    gives_changes = True

    def described(self, written: Written) -> OperatorSpec:  # noqa: ARG002
        how = ParameterSpec("how", self.how, f"{self.how} join of rows that may be retracted")
        return OperatorSpec(
            "retractable join", (how, ParameterSpec("changes", self.changes), ParameterSpec("suffixes", self.suffixes, rule=free))
        )

    def bind(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "RetractableJoinProcess":  # noqa: ARG002
        columns = join_columns(rows, keys, (None, None), self.suffixes)
        left, right = (
            _unweighted(side) if changes else side
            for side, changes in zip((columns.left, columns.right), self.changes, strict=True)
        )
        return RetractableJoinProcess(self, replace(columns, left=left, right=right))


def _unweighted(side: SideColumns) -> SideColumns:
    kept = [(field, name) for field, name in zip(side.fields, side.names, strict=True) if field.name != WEIGHT]
    return replace(side, fields=tuple(field for field, _ in kept), names=tuple(name for _, name in kept))


class RetractableJoinProcess(KeyedBatchProcess, OperatorTraits):
    """A join of changelogs bound to the schemas of its sides."""

    needs_all_changes = True

    def __init__(self, join: RetractableJoin, columns: JoinColumns) -> None:
        self._how, self._columns, self._changes = join.how, columns, join.changes
        self._left_only = join.how in ("semi", "anti")
        self.output = columns.output((), [pa.field(WEIGHT, pa.int64())], with_right=not self._left_only)

    def states(self) -> dict[str, State]:
        return {f"{side.side}_now": multiset_state("join", _kept(side)) for side in (self._columns.left, self._columns.right)}

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        of_right = batch.column(RIGHT_SIDE).to_numpy(zero_copy_only=False)
        left = self._side(batch, self._columns.left, np.flatnonzero(~of_right), self._changes[0])
        right = self._side(batch, self._columns.right, np.flatnonzero(of_right), self._changes[1])
        changes = list(self._changes_of(batch, left, right))
        return pa.concat_tables([*(retractions for retractions, _ in changes), *(insertions for _, insertions in changes)])

    def _side(self, batch: Batch, side: SideColumns, rows: np.ndarray, changes: bool) -> Multiset:
        kept, weights = _kept(side), np.ones(len(rows), np.int64)
        packed = batch.column(PACKED[side.side], rows) if batch.has(PACKED[side.side]) else None
        if changes and packed is not None:
            weights = weights_of(pc.struct_field(packed, WEIGHT))
        there = pa.repeat(True, len(rows))
        columns = [there] * len(kept)
        if packed is not None and side.fields:
            by_name = dict(zip((field.name for field in packed.type), fields_of(packed), strict=True))
            columns = [by_name[field.name] for field in kept]
        values = pa.StructArray.from_arrays(columns, fields=kept)
        return Multiset.apply(batch, f"{side.side}_now", batch.key_of_row[rows], values, weights)

    def _changes_of(self, batch: Batch, left: Multiset, right: Multiset) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Retractions and insertions: of pairs, then of unmatched rows of each side."""
        met = _without_null(batch)
        if not self._left_only:
            one, other, net = _pairs(left, right, met)
            yield self._changed(batch, _Some(left, one), _Some(right, other), net)
        if self._how == "semi":
            yield self._changed(batch, _Some.all(left), None, _net(left, *_partners(left, right, met)))
        if "left" in PADDED.get(self._how, ()):
            yield self._changed(batch, _Some.all(left), None, _unmatched(left, right, met))
        if "right" in PADDED.get(self._how, ()):
            yield self._changed(batch, None, _Some.all(right), _unmatched(right, left, met))

    def _changed(self, batch: Batch, left: "_Some | None", right: "_Some | None", net: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Retractions and insertions: output rows of these rows of both sides (null without), each ``net`` times."""
        some = left or right
        assert some is not None
        tables = []
        for sign in (-1, 1):
            at = np.repeat(np.arange(len(net)), np.maximum(sign * net, 0))
            owner = pa.array(some.multiset.owner[some.rows[at]])
            columns = [column.take(owner) for column in batch.keys.columns]
            columns += _columns(self._columns.left, left, at)
            columns += [] if self._left_only else _columns(self._columns.right, right, at)
            weights = pa.repeat(pa.scalar(sign, pa.int64()), len(at))
            tables.append(pa.Table.from_arrays([*columns, weights], schema=self.output))
        return tables[0], tables[1]


class _Some(NamedTuple):
    """Some rows of a side."""

    multiset: Multiset
    rows: np.ndarray

    @classmethod
    def all(cls, multiset: Multiset) -> "_Some":
        return cls(multiset, np.arange(len(multiset.owner)))


def _kept(side: SideColumns) -> list[pa.Field]:
    return list(side.fields) or [pa.field(_EMPTY, pa.bool_())]


def _columns(side: SideColumns, some: _Some | None, at: np.ndarray) -> list[pa.Array]:
    if some is None:
        return side.nulls(len(at))
    taken = some.multiset.values.take(pa.array(some.rows[at]))
    return fields_of(taken) if side.fields else []


def _without_null(batch: Batch) -> np.ndarray:
    """Per key, whether it can have partners: null equals nothing."""
    joinable = np.ones(len(batch.keys), bool)
    for column in batch.keys.columns:
        joinable &= column.is_valid().to_numpy(zero_copy_only=False)
    return joinable


def _partners(mine: Multiset, others: Multiset, met: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row whether it had a partner before the epoch, and whether it has one now."""
    sizes = (np.bincount(others.owner, counts, len(met)) for counts in (others.before, others.now))
    before, now = ((met & (size > 0))[mine.owner] for size in sizes)
    return before, now


def _net(rows: Multiset, before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """The change in multiplicity of each output row, given where it was in the output before and where it is now."""
    return np.where(now, rows.now, 0) - np.where(before, rows.before, 0)


def _unmatched(mine: Multiset, others: Multiset, met: np.ndarray) -> np.ndarray:
    """The change in multiplicity of each unmatched row in the output."""
    before, now = _partners(mine, others, met)
    return _net(mine, ~before, ~now)


def _pairs(left: Multiset, right: Multiset, met: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of each pair that changed, and the change in its multiplicity."""
    parts = [_matched(left, right, left.added, right.now, met), _matched(left, right, left.before, right.added, met)]
    one, other, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    code, at = np.unique(one * max(len(right.owner), 1) + other, return_inverse=True)
    net = np.zeros(len(code), np.int64)
    np.add.at(net, at, counts)
    width = max(len(right.owner), 1)
    return code // width, code % width, net


def _matched(
    left: Multiset, right: Multiset, of_left: np.ndarray, of_right: np.ndarray, met: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of rows with these multiplicities, and the product of each pair."""
    one, other = np.flatnonzero((of_left != 0) & met[left.owner]), np.flatnonzero((of_right != 0) & met[right.owner])
    no_times = np.zeros(len(one), np.int64), np.zeros(len(other), np.int64)
    row, partner = partners(left.owner[one], no_times[0], right.owner[other], no_times[1], 0, 0).pairs()
    one, other = one[row], other[partner]
    return one, other, of_left[one] * of_right[other]
