"""Joins of streams of which rows may be taken back: what came of a row is taken back with it.

All rows of both sides are kept, each different one with how many there are of it. An epoch reads those of the keys that have
changes. So many pairs of two rows hold as there are of the one times of the other.
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
from floodplain.operators.kernel.definition import Described, Given, Written, free
from floodplain.operators.kernel.process import KeyedBatchProcess
from floodplain.operators.kernel.reserved_columns import RIGHT_SIDE
from floodplain.operators.kernel.traits import OperatorTraits
from floodplain.state.descriptors import State
from floodplain.structs import fields_of

_EMPTY = "no_columns"
"""Stands for the columns of a side that has none but its key."""


@dataclass(frozen=True)
class RetractableJoin(KeyedBatchProcess, OperatorTraits):
    """What was asked for."""

    how: How
    suffixes: tuple[str, str] | None = None
    changes: tuple[bool, bool] = (True, True)
    """Of each side, whether its rows are changes."""

    gives_changes = True

    def described(self, written: Written) -> Described:  # noqa: ARG002
        how = Given("how", self.how, f"{self.how} join of rows that may be retracted")
        return Described("retractable join", (how, Given("changes", self.changes), Given("suffixes", self.suffixes, rule=free)))

    def fitted(self, rows: pa.Schema, keys: tuple[str, ...], event_time: str | None) -> "RetractableJoinProcess":  # noqa: ARG002
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
    """A join of sides whose columns are known."""

    needs_all_changes = True

    def __init__(self, asked: RetractableJoin, columns: JoinColumns) -> None:
        self._how, self._columns, self._changes = asked.how, columns, asked.changes
        self._alone = asked.how in ("semi", "anti")
        self.output = columns.output((), [pa.field(WEIGHT, pa.int64())], with_right=not self._alone)

    def states(self) -> dict[str, State]:
        return {f"{side.side}_now": multiset_state("join", _kept(side)) for side in (self._columns.left, self._columns.right)}

    def process(self, batch: Batch, ctx: BatchContext) -> pa.Table | None:  # noqa: ARG002
        if not len(batch.key_of_row):
            return None
        of_right = batch.column(RIGHT_SIDE).to_numpy(zero_copy_only=False)
        left = self._side(batch, self._columns.left, np.flatnonzero(~of_right), self._changes[0])
        right = self._side(batch, self._columns.right, np.flatnonzero(of_right), self._changes[1])
        made = list(self._made(batch, left, right))
        return pa.concat_tables([*(gone for gone, _ in made), *(new for _, new in made)])

    def _side(self, batch: Batch, side: SideColumns, rows: np.ndarray, changes: bool) -> Multiset:
        kept, weights = _kept(side), np.ones(len(rows), np.int64)
        packed = batch.column(PACKED[side.side], rows) if batch.has(PACKED[side.side]) else None
        if changes and packed is not None:
            weights = weights_of(pc.struct_field(packed, WEIGHT))
        there = pa.repeat(True, len(rows))
        columns = [there] * len(kept)
        if packed is not None and side.fields:
            given = dict(zip((field.name for field in packed.type), fields_of(packed), strict=True))
            columns = [given[field.name] for field in kept]
        values = pa.StructArray.from_arrays(columns, fields=kept)
        return Multiset.apply(batch, f"{side.side}_now", batch.key_of_row[rows], values, weights)

    def _made(self, batch: Batch, left: Multiset, right: Multiset) -> Iterator[tuple[pa.Table, pa.Table]]:
        """What is taken back and what is new: of pairs, then of rows of each side by themselves."""
        met = _without_null(batch)
        if not self._alone:
            one, other, net = _pairs(left, right, met)
            yield self._changed(batch, _Some(left, one), _Some(right, other), net)
        if self._how == "semi":
            yield self._changed(batch, _Some.all(left), None, _net(left, *_partners(left, right, met)))
        if "left" in PADDED.get(self._how, ()):
            yield self._changed(batch, _Some.all(left), None, _lonely(left, right, met))
        if "right" in PADDED.get(self._how, ()):
            yield self._changed(batch, None, _Some.all(right), _lonely(right, left, met))

    def _changed(self, batch: Batch, left: "_Some | None", right: "_Some | None", net: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Rows made of these of both sides (null without), each as often as ``net`` says: those to take back, and the others."""
        some = left or right
        assert some is not None
        found = []
        for sign in (-1, 1):
            at = np.repeat(np.arange(len(net)), np.maximum(sign * net, 0))
            owner = pa.array(some.copies.owner[some.rows[at]])
            columns = [column.take(owner) for column in batch.keys.columns]
            columns += _columns(self._columns.left, left, at)
            columns += [] if self._alone else _columns(self._columns.right, right, at)
            weights = pa.repeat(pa.scalar(sign, pa.int64()), len(at))
            found.append(pa.Table.from_arrays([*columns, weights], schema=self.output))
        return found[0], found[1]


class _Some(NamedTuple):
    """Some rows of a side."""

    copies: Multiset
    rows: np.ndarray

    @classmethod
    def all(cls, copies: Multiset) -> "_Some":
        return cls(copies, np.arange(len(copies.owner)))


def _kept(side: SideColumns) -> list[pa.Field]:
    return list(side.fields) or [pa.field(_EMPTY, pa.bool_())]


def _columns(side: SideColumns, some: _Some | None, at: np.ndarray) -> list[pa.Array]:
    if some is None:
        return side.nulls(len(at))
    taken = some.copies.values.take(pa.array(some.rows[at]))
    return fields_of(taken) if side.fields else []


def _without_null(batch: Batch) -> np.ndarray:
    """Per key, whether it can have partners: null equals nothing."""
    found = np.ones(len(batch.keys), bool)
    for column in batch.keys.columns:
        found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _partners(mine: Multiset, others: Multiset, met: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row whether the other side had a partner for it, and whether it has one now."""
    sizes = (np.bincount(others.owner, counts, len(met)) for counts in (others.before, others.now))
    before, now = ((met & (size > 0))[mine.owner] for size in sizes)
    return before, now


def _net(rows: Multiset, before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """How many more of each row come out, where they did before if that is marked, and do now."""
    return np.where(now, rows.now, 0) - np.where(before, rows.before, 0)


def _lonely(mine: Multiset, others: Multiset, met: np.ndarray) -> np.ndarray:
    """How many more of each row come out without a partner."""
    before, now = _partners(mine, others, met)
    return _net(mine, ~before, ~now)


def _pairs(left: Multiset, right: Multiset, met: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of each pair that changed, and how many more of it there are."""
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
    """The pairs of rows that have a number each, and the product of both."""
    one, other = np.flatnonzero((of_left != 0) & met[left.owner]), np.flatnonzero((of_right != 0) & met[right.owner])
    nowhen = np.zeros(len(one), np.int64), np.zeros(len(other), np.int64)
    found, partner = partners(left.owner[one], nowhen[0], right.owner[other], nowhen[1], 0, 0).pairs()
    one, other = one[found], other[partner]
    return one, other, of_left[one] * of_right[other]
