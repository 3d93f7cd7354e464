"""Aggregates with a sketch as accumulator: small, and independent of the order of rows and merges."""

from dataclasses import dataclass
from math import ceil, log, log2

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput, SchemaMismatch
from floodplain.keys import check_key_type, hash_columns, normalize_keys
from floodplain.operators.aggregates.base import Aggregate, Columns, Types
from floodplain.operators.kernel.segments import Groups, flattened, groups_of, list_type, listed, valid

_RANK_BITS = 6


@dataclass(frozen=True)
class ApproxCountDistinct(Aggregate):
    """HyperLogLog on the hash of keys, with a sparse list of registers and Ertl's estimator."""

    rsd: float = 0.05

    def __post_init__(self) -> None:
        if not 0.004 <= self.rsd <= 0.3:
            raise BadInput(f"approx_count_distinct: rsd={self.rsd} is not possible: use 0.004 to 0.3")

    @property
    def bits(self) -> int:
        """How many bits of the hash choose the register."""
        return ceil(2 * log2(1.04 / self.rsd))

    def output(self, types: Types) -> pa.DataType:
        check_key_type("of approx_count_distinct", types[0])
        return pa.int64()

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:  # noqa: ARG002
        return (list_type(pa.int32()),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        rows = np.flatnonzero(valid(columns[0]))
        hashes = hash_columns(normalize_keys([columns[0].take(pa.array(rows))]))
        register = hashes >> np.uint64(64 - self.bits)
        rest = hashes | np.uint64(1 << (64 - self.bits))
        lowest = rest & (~rest + np.uint64(1))
        rank = np.log2(lowest.astype(np.float64)).astype(np.uint64) + np.uint64(1)
        entries = (register << np.uint64(_RANK_BITS) | rank).astype(np.int64)
        return [self._greatest(groups.of_row[rows], entries, len(groups))]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        owner, entries = flattened(partials[0], groups)
        return [self._greatest(owner, entries.to_numpy().astype(np.int64), len(groups))]

    def _greatest(self, owner: np.ndarray, entries: np.ndarray, count: int) -> pa.Array:
        """The greatest rank of each register."""
        packed = np.sort(owner << (self.bits + _RANK_BITS) | entries)
        last = np.append(packed[1:] >> _RANK_BITS != packed[:-1] >> _RANK_BITS, True)[: len(packed)]
        kept = packed[last]
        mask = (1 << (self.bits + _RANK_BITS)) - 1
        return listed(kept >> (self.bits + _RANK_BITS), pa.array((kept & mask).astype(np.int32)), count)

    def result(self, partials: Columns) -> pa.Array:
        owner, entries = flattened(partials[0], groups_of(np.arange(len(partials[0]))))
        count, rest = len(partials[0]), 64 - self.bits
        rank = entries.to_numpy() & ((1 << _RANK_BITS) - 1)
        histogram = np.bincount(owner * (rest + 2) + rank, minlength=count * (rest + 2)).reshape(count, rest + 2)
        return pa.array(np.round(_estimate(histogram, 1 << self.bits)).astype(np.int64))


def _estimate(histogram: np.ndarray, registers: int) -> np.ndarray:
    """Ertl's improved estimator (2017), which needs no bias corrections. ``histogram``: the number of registers per rank."""
    most = histogram.shape[1] - 1
    z = registers * _tau(1 - histogram[:, most] / registers)
    for rank in range(most - 1, 0, -1):
        z = 0.5 * (z + histogram[:, rank])
    z = z + registers * _sigma((registers - histogram.sum(axis=1)) / registers)
    return registers * registers / (2 * log(2) * z)


def _sigma(x: np.ndarray) -> np.ndarray:
    y, z = np.ones_like(x), x.copy()
    for _ in range(64):
        x = x * x
        z, y = z + x * y, y + y
    return np.where(x >= 1, np.inf, z)


def _tau(x: np.ndarray) -> np.ndarray:
    y, z = np.ones_like(x), 1 - x
    for _ in range(64):
        x = np.sqrt(x)
        y = y / 2
        z = z - (1 - x) ** 2 * y
    return np.where(x == 0, 0, z) / 3


_BUCKET = pa.struct([pa.field("bucket", pa.int32()), pa.field("rows", pa.int64())])
_LEAST, _MOST = 1e-300, 1e300
_MIDDLE = 1 << 30
"""Added to a bucket number, so that positive values have positive buckets, and negative values negative ones."""


@dataclass(frozen=True)
class ApproxQuantile(Aggregate):
    """DDSketch: the number of values in logarithmic buckets. Merging adds counts, so its order does not matter, other than with
    the samples of KLL and the centroids of a t-digest."""

    q: tuple[float, ...] = (0.5,)
    error: float = 0.01
    several: bool = False

    def __post_init__(self) -> None:
        if not self.q or not all(0 <= quantile <= 1 for quantile in self.q):
            raise BadInput(f"approx_quantile needs quantiles from 0 to 1, not {self.q}")
        if not 0.0001 <= self.error <= 0.5:
            raise BadInput(f"approx_quantile: error={self.error} is not possible: use 0.0001 to 0.5")

    @property
    def _base(self) -> float:
        return (1 + self.error) / (1 - self.error)

    def output(self, types: Types) -> pa.DataType:
        if not (pa.types.is_integer(types[0]) or pa.types.is_floating(types[0])):
            raise SchemaMismatch(f"a quantile needs an integer or a double, not {types[0]}: cast it to double")
        return list_type(pa.float64()) if self.several else pa.float64()

    def partial(self, types: Types) -> tuple[pa.DataType, ...]:  # noqa: ARG002
        return (list_type(_BUCKET),)

    def of(self, columns: Columns, groups: Groups) -> list[pa.Array]:
        rows = np.flatnonzero(valid(columns[0]))
        values = columns[0].take(pa.array(rows)).cast(pa.float64()).to_numpy()
        size = np.clip(np.nan_to_num(np.abs(values), nan=_MOST), _LEAST, _MOST)
        number = np.ceil(np.log(size) / log(self._base)).astype(np.int64) + _MIDDLE
        buckets = np.where(np.abs(values) < _LEAST, 0, np.where(values < 0, -number, number))
        return [_added(groups.of_row[rows], buckets, np.ones(len(rows), np.int64), len(groups))]

    def combine(self, partials: Columns, groups: Groups) -> list[pa.Array]:
        owner, entries = flattened(partials[0], groups)
        buckets, rows = (pc.struct_field(entries, i).to_numpy() for i in (0, 1))
        return [_added(owner, buckets.astype(np.int64), rows, len(groups))]

    def result(self, partials: Columns) -> pa.Array:
        count = len(partials[0])
        owner, entries = flattened(partials[0], groups_of(np.arange(count)))
        buckets, rows = (pc.struct_field(entries, i).to_numpy() for i in (0, 1))
        upto = np.cumsum(rows)
        total = np.bincount(owner, rows, count).astype(np.int64)
        before = np.cumsum(total) - total
        results = np.empty((count, len(self.q)))
        for i, quantile in enumerate(self.q):
            wanted = before + np.floor(quantile * np.maximum(total - 1, 0)).astype(np.int64)
            position = np.minimum(np.searchsorted(upto, wanted, "right"), max(len(upto) - 1, 0))
            results[:, i] = self._value(buckets[position]) if len(buckets) else 0.0
        if not self.several:
            return pa.array(results[:, 0], mask=total == 0)
        offsets, values = pa.array(np.arange(count + 1, dtype=np.int32) * len(self.q)), pa.array(results.ravel())
        return pa.ListArray.from_arrays(offsets, values, type=list_type(pa.float64()), mask=pa.array(total == 0))

    def _value(self, buckets: np.ndarray) -> np.ndarray:
        """The value with the same relative distance from both ends of the bucket."""
        number = np.abs(buckets.astype(np.int64)) - _MIDDLE
        size = np.exp(number * log(self._base)) * 2 / (self._base + 1)
        return np.where(buckets == 0, 0.0, np.sign(buckets) * size)


def _added(owner: np.ndarray, buckets: np.ndarray, rows: np.ndarray, count: int) -> pa.Array:
    """The sum of rows per owner and bucket."""
    order = np.lexsort((buckets, owner))
    owner, buckets = owner[order], buckets[order]
    same = groups_of(owner, buckets)
    arrays = [pa.array(buckets[same.starts].astype(np.int32)), pa.array(same.reduced(np.add, rows[order]))]
    return listed(owner[same.starts], pa.StructArray.from_arrays(arrays, fields=list(_BUCKET)), count)
