"""Stores in memory for the tests of what must hold, a zoo of tables to fill them with, and their keys and values."""

import itertools
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodplain.clock import Clock, ManualClock, SeededRandomness
from floodplain.errors import StoreNotFound
from floodplain.keys import hash_columns, normalize_keys
from floodplain.metrics import Counters
from floodplain.settings import CacheSettings, RetentionSettings, RetrySettings, StoreSettings
from floodplain.store.store import Store, Writer
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.memory import MemoryBlobs
from floodplain.versions.log import lease
from floodplain.versions.log.fences import SEGMENT
from floodplain.versions.log.history import History
from tests.store.model import JOIN_TEXT, ModelColumn, ModelTable, Row

RETRY = RetrySettings(attempts=3, first_delay_ms=1, max_delay_ms=1)
_seeds = itertools.count(1)


class ObjectLike(MemoryBlobs):
    """Runs are compressed and have membership filters, as on an object store."""

    tier = "object"


class Mapped(MemoryBlobs):
    """Runs are mapped, as in a directory."""

    def map(self, name: str) -> pa.Buffer | None:
        return self._find(name)


class Cached(CachedBlobs):
    """An object store behind a cache, in which runs are decoded and mapped."""

    def __init__(self, url: str, counters: Counters) -> None:
        folder = tempfile.TemporaryDirectory()
        super().__init__(ObjectLike(url, counters), CacheSettings(folder.name, 4 << 20), clock=ManualClock(), counters=counters)
        self._folder = folder


TIERS: dict[str, Callable[[str, Counters], Blobs]] = {
    "memory": MemoryBlobs,
    "object": ObjectLike,
    "mapped": Mapped,
    "cached": Cached,
}


def memory(tier: str = "memory") -> Blobs:
    return TIERS[tier]("memory://test", Counters())


def settings(**changes: Any) -> StoreSettings:
    given = {"key_groups": 4, "retention": RetentionSettings(newest=3, every_ms=()), "retry": RETRY, **changes}
    return StoreSettings(**given)


def open_store(blobs: Blobs, clock: Clock, chosen: StoreSettings, *, log_segment: int = SEGMENT) -> Store:
    """As another process would, or the first one."""
    randomness = SeededRandomness(next(_seeds))
    try:
        history = History.open(blobs, settings=chosen, clock=clock, randomness=randomness)
    except StoreNotFound:
        where = {"settings": chosen, "clock": clock, "randomness": randomness}
        history = History.create(blobs, chosen.key_groups, log_segment=log_segment, **where)
    return Store(history, Counters())


def force_writer(store: Store, owner: str = "w") -> Writer:
    """Take the lease without probing the blobs first."""
    return Writer(store, lease.take(store.history, owner, force=True))


def run_objects(blobs: Blobs) -> set[str]:
    return {info.name for info in blobs.list(paths.RUNS)}


def log_positions(blobs: Blobs) -> list[int]:
    return [position for info in blobs.list(paths.LOG) if (position := paths.position_of(info.name)) is not None]


def named_objects(store: Store) -> set[str]:
    """The run objects that some retained epoch, or the head, needs."""
    head = store.history.refresh()
    manifests = [head, *(store.history.manifest_at(mark) for mark in head.epochs)]
    return set().union(*(manifest.objects() for manifest in manifests))


# --- Keys that are equal but differ in bytes, that collide, and that stand at the ends of the number line.


def colliding(a: int, b: int, other: int) -> tuple[int, int]:
    """A pair of longs that starts with ``other`` and has the hash of ``(a, b)``: the last step of xxhash64 can be undone."""
    p1, p2, mask = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, (1 << 64) - 1
    offset = 0x27D4EB2F165667C5 + 8
    seeds = [(int(hash_columns([pa.array([first])])[0]) + offset) & mask for first in (a, other)]
    turned = (b * p2) & mask
    lane = ((((turned << 31) | (turned >> 33)) & mask) * p1) & mask
    lane = ((lane ^ seeds[0] ^ seeds[1]) * pow(p1, -1, 1 << 64)) & mask
    word = (((lane >> 31) | (lane << 33)) & mask) * pow(p2, -1, 1 << 64) & mask
    return other, word - (1 << 64) if word >> 63 else word


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
TEXTS = ("a", "b", None, "", "a\0", "ü" * 40, "c", "d")
NUMBERS = (0, 1, None, -1, (1 << 31) - 1, 7, 8, 9)
PAIRS = ((0, 0.0), (0, -0.0), (1, float("nan")), (1, OTHER_NAN), (None, 0.0), (1, None), (-(1 << 63), float("inf")), (2, 1.5))
POSITIONS = (0, 1, 2, (1 << 64) - 1, 1 << 63, 3)
LONGS = ((0, 0), colliding(0, 0, 1), colliding(0, 0, 2), (1, 0), (None, 0), (0, None))
STRUCTS: tuple[dict[str, Any] | None, ...] = (
    {"x": 0.0, "y": ["a", None]},
    {"x": -0.0, "y": ["a", None]},
    {"x": float("nan"), "y": []},
    {"x": None, "y": None},
    {"x": 1.0, "y": ["a"]},
    None,
)
TIMES = (0, 1, -5, (1 << 63) - 1, -(1 << 63), 10)

_STRUCT = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])


@dataclass(frozen=True)
class Species:
    """A table to begin with, and the keys and sub-keys it is given."""

    table: ModelTable
    keys: Sequence[Any]
    subkeys: Sequence[Any] = ((),)

    def row(self, key: int, sub: int) -> dict[str, Any]:
        names = [*self.table.keys, *self.table.subkeys]
        values = (*_as_tuple(self.keys[key % len(self.keys)]), *_as_tuple(self.subkeys[sub % len(self.subkeys)]))
        return dict(zip(names, values, strict=True))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def zoo() -> dict[str, Species]:
    text, whole = pa.string(), pa.int64()
    plain_columns = (
        ModelColumn(1, "n", whole, 0, "sum"),
        ModelColumn(2, "lo", pa.int32(), None, "min"),
        ModelColumn(3, "hi", pa.float64(), None, "max"),
        ModelColumn(4, "tag", text),
        ModelColumn(5, "trail", pa.list_(whole), None, "append"),
        ModelColumn(6, "joined", text, ">", JOIN_TEXT),
        ModelColumn(7, "small", pa.int16(), 3, "sum"),
    )
    ending = (
        ModelColumn(1, "n", whole, 5, "sum"),
        ModelColumn(2, "x", pa.float32()),
        ModelColumn(3, "c", whole, 3, "sum", 50),
        ModelColumn(4, "d", text, "gone", "", 70),
        ModelColumn(5, "joined", text, None, JOIN_TEXT, 60),
    )
    items = (ModelColumn(1, "v", pa.int32()), ModelColumn(2, "n", whole, None, "sum"))
    counts = (ModelColumn(1, "n", whole, 2, "sum"), ModelColumn(2, "s", text))
    notes = (ModelColumn(1, "note", text), ModelColumn(2, "n", whole, 0, "sum"))
    return {
        "values": Species(ModelTable("values", "value", {"user": text}, {}, plain_columns), TEXTS),
        "ending": Species(ModelTable("ending", "value", {"a": whole, "f": pa.float64()}, {}, ending, 100), PAIRS),
        "items": Species(ModelTable("items", "ordered", {"user": text}, {"at": pa.uint64()}, items, 100), TEXTS, POSITIONS),
        "counts": Species(ModelTable("counts", "hashed", {"user": pa.int32()}, {"a": whole, "b": whole}, counts), NUMBERS, LONGS),
        "members": Species(ModelTable("members", "hashed", {"user": text}, {"p": _STRUCT}, (), 90), TEXTS, STRUCTS),
        "timers": Species(ModelTable("timers", "time", {"user": text}, {"at": whole}, notes), TEXTS, TIMES),
    }


def value_of(type_: pa.DataType, seed: int, merged: bool) -> Any:
    """A value of this type, now and then null; whole numbers only, so that sums are the same in every order."""
    if seed % 8 == 0:
        return None
    if pa.types.is_integer(type_):
        return seed - 5
    if pa.types.is_floating(type_):
        return float("nan") if seed % 8 == 3 and not merged else float(seed - 5)
    if pa.types.is_list(type_):
        return [None if seed == 9 else seed] * (seed % 3)
    return f"{seed:x}"


FORGED = (0, (1 << 64) - 1, 1 << 62, (1 << 62) - 1, 1 << 63, 12_345)


def arrow_rows(table: ModelTable, rows: Sequence[Row], names: Sequence[str], forged: int) -> pa.Table:
    """Rows as a caller hands them over. ``forged``: so many different hashes are believed instead of the true ones."""
    types = {**table.keys, **table.subkeys, **{column.name: column.type for column in table.columns}}
    columns = {name: pa.array([row[name] for row in rows], types.get(name, pa.int64())) for name in names}
    if forged:
        hashes = [FORGED[zlib.crc32(repr(table.key_of(row)).encode()) % forged] for row in rows]
        columns["_hash"] = pa.array(hashes, pa.uint64())
    return pa.table(columns)


def hashes_of(table: ModelTable, rows: pa.Table) -> Any:
    """The hash that the store goes by, true or forged."""
    if "_hash" in rows.column_names:
        return rows.column("_hash").to_numpy()
    return hash_columns(normalize_keys([rows.column(name) for name in table.keys]))
