"""The runs that this process has open: a table cache."""

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from floodplain.errors import NotFound
from floodplain.metrics import Counters
from floodplain.store.run import validation
from floodplain.store.run.cached_run import RUN, SMALL_BYTES, key_of
from floodplain.store.run.chunk_cache import ChunkCache
from floodplain.store.run.lookup_keys import Source
from floodplain.store.run.opening import open_run
from floodplain.store.run.read_ahead import ReadAhead
from floodplain.store.run.reader import FETCH_BYTES, RunReader
from floodplain.store.run.run_index import RunIndex
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.derived import DerivedCache
from floodplain.tiers.fan_out import fan_out
from floodplain.versions.records.edit import GroupRanges, RunRef
from floodplain.versions.records.groups import intersect
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema

T = TypeVar("T")
R = TypeVar("R")

_CONCURRENT_OPENS = 8
INDEXED = 64
"""A table with so many runs has an index of them by key group, for lookups and scans that want few groups."""
LOCAL_TIERS = ("directory", "memory")
"""Tiers that serve a run without a remote request."""


class Use:
    """While this is referenced its runs are in use: ``OpenRuns.unmap`` leaves them open."""

    __slots__ = ("__weakref__", "runs")

    def __init__(self, manifest: Manifest) -> None:
        self.runs = manifest.runs


class OpenRuns:
    """Opens runs once and shares them. Runs are immutable, so what is open stays true; ``keep_only`` and ``unmap`` let go of the
    rest. A run that is let go of while it is read stays mapped until its reader is through.

    The disk may still change under what is mapped. The length of a mapped file is looked at each time its run is handed out;
    ``afresh`` is for work that must not rest on what was verified before.
    """

    def __init__(
        self,
        blobs: Blobs,
        store: str,
        memory_bytes: int,
        counters: Counters | None = None,
        *,
        window_bytes: int = FETCH_BYTES,
        mapped: bool = True,
    ) -> None:
        self.counters = counters or Counters()
        self._blobs = blobs
        self._store = store
        self._memory_bytes = memory_bytes
        self._window_bytes = window_bytes
        self._mapped = mapped
        self._cache = ChunkCache(memory_bytes)
        self._open: dict[tuple[str, int], RunReader] = {}
        self._members: dict[tuple[str, int], tuple[GroupRanges, np.ndarray]] = {}
        self._named: dict[tuple[str, int], RunRef] = {}
        """The runs that were opened, or were to stay open the last time."""
        self._indexes: dict[str, RunIndex] = {}
        """Table → its runs by key group, of the manifest that was read last."""
        self._uses: weakref.WeakSet[Use] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.was_read: dict[str, bool] = {}
        """What a task may read → whether the last one of this process has. ``TaskReads`` keeps it."""

    @property
    def waits(self) -> bool:
        """Whether reading a run may take a remote request."""
        return not (self._blobs.answers_at_once or self._blobs.tier in LOCAL_TIERS)

    def read_ahead(self, most_requests: int, budget_bytes: int) -> ReadAhead:
        """Fetches chunks in the background, for all who read runs here."""
        return ReadAhead(self._cache, most_requests=most_requests, budget_bytes=budget_bytes)

    def on_each(self, ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """What ``ask`` returns for each item, in order; several at a time where reading waits."""
        return fan_out(self._blobs, ask, items, _CONCURRENT_OPENS)

    def use(self, manifest: Manifest) -> Use:
        """Mark the runs of this manifest as in use for as long as the result is referenced."""
        use = Use(manifest)
        with self._lock:
            self._uses.add(use)
        return use

    def unmap(self, newest: Manifest) -> None:
        """Close every run that is neither in the newest manifest nor in use."""
        with self._lock:
            used = [newest.runs, *(use.runs for use in self._uses)]
        self.keep_only(run for tables in used for runs in tables.values() for run in runs)

    def afresh(self) -> "OpenRuns":
        """The same store with nothing open and nothing mapped.

        Each chunk is verified from bytes that were read anew and that nobody else can change, and these are what is used: for
        work whose result takes the place of what it read.
        """
        return OpenRuns(
            self._blobs, self._store, self._memory_bytes, self.counters, window_bytes=self._window_bytes, mapped=False
        )

    def sources(
        self, manifest: Manifest, table: str, groups: GroupRanges | None = None, *, now_ms: int | None = None
    ) -> list[Source]:
        """The runs that overlap these key groups, newest first. ``now_ms``: without those that have expired by then."""
        refs = list(manifest.runs.get(table, ())) if groups is None else self._overlapping(manifest, table, groups)
        schema = manifest.schema(table)
        if now_ms is not None and schema is not None and schema.ttl_ms and not any(ref.merges for ref in refs):
            # An expired row still hides what is older; where nothing is, it is as if it were not there. (What lies below a merge
            # is judged by the time of that.)
            while refs and 0 < refs[-1].last_expiry_ms <= now_ms:
                refs.pop()
        return self.sources_of(refs, manifest)

    def _overlapping(self, manifest: Manifest, table: str, groups: GroupRanges) -> list[RunRef]:
        runs = manifest.runs.get(table, ())
        if len(runs) < INDEXED:
            return [ref for ref in runs if intersect(ref.groups, groups)]
        index = self._indexes.get(table)
        if index is None or index.runs is not runs:
            index = self._indexes[table] = RunIndex(runs, manifest.key_groups)
        return index.over_ranges(groups)

    def sources_of(self, refs: Sequence[RunRef], manifest: Manifest) -> list[Source]:
        schemas = [validation.schema_of(ref, manifest) for ref in refs]
        readers = self._readers(list(zip(refs, schemas, strict=True)), manifest.key_groups)
        return [
            Source(reader, schema, self._member(ref, manifest.key_groups))
            for reader, schema, ref in zip(readers, schemas, refs, strict=True)
        ]

    def _member(self, ref: RunRef, key_groups: int) -> np.ndarray:
        """``validation.membership``, kept for as long as the run is open."""
        groups, member = self._members.get(_key(ref), (None, None))
        if member is None or groups != ref.groups:
            member = validation.membership(ref, key_groups)
            with self._lock:
                self._members[_key(ref)] = ref.groups, member
        return member

    def keep_only(self, refs: Iterable[RunRef]) -> None:
        """Unmap every run that is not among ``refs``. What was among them the last time leaves the cache of this machine, too."""
        named = {_key(ref): ref for ref in refs}
        with self._lock:
            before, self._open = self._open, {key: reader for key, reader in self._open.items() if key in named}
            self._members = {key: member for key, member in self._members.items() if key in named}
            gone = [ref for key, ref in self._named.items() if key not in named]
            self._named = named
        self._cache.drop_all_but({ref.id for ref in named.values()})
        if (derived := self._blobs.derived) is not None:
            self._evict(derived, gone, before)
            if derived.review_due():
                self._review()

    def _evict(self, derived: DerivedCache, gone: Sequence[RunRef], before: Mapping[tuple[str, int], RunReader]) -> None:
        """Others on this machine may still read what leaves: what they have mapped stays readable."""
        parts, unknown = list[tuple[str, str]](), list[str]()
        for ref in gone:
            reader = before.get(_key(ref))
            if reader is not None and reader.cached is not None:
                parts += reader.cached.parts()
            elif ref.length <= SMALL_BYTES:
                parts.append((key_of(ref, self._store), RUN))
            else:
                unknown.append(key_of(ref, self._store))
        derived.drop(parts, unknown)

    def _review(self) -> None:
        with self._lock:
            readers = list(self._open.values())
        for reader in readers:
            if reader.cached is not None:
                self._cache.drop(reader.ref.id, reader.cached.review())

    def _readers(self, wanted: Sequence[tuple[RunRef, TableSchema]], key_groups: int) -> list[RunReader]:
        known = [self._open.get(_key(ref)) for ref, _ in wanted]
        missing = [pair for pair, reader in zip(wanted, known, strict=True) if reader is None]
        for reader in known:
            if reader is not None:
                reader.check_length()
        if len(missing) > 1 and self._far(missing[0][0].object):
            opened = fan_out(self._blobs, lambda pair: self._open_one(pair, key_groups), missing, _CONCURRENT_OPENS)
        else:
            opened = [self._open_one(pair, key_groups) for pair in missing]
        fresh = {_key(pair[0]): reader for pair, reader in zip(missing, opened, strict=True)}
        with self._lock:
            self._open.update(fresh)
            self._named.update((_key(ref), ref) for ref, _ in missing)
        return [reader or fresh[_key(ref)] for reader, (ref, _) in zip(known, wanted, strict=True)]

    def _far(self, name: str) -> bool:
        try:
            return self._blobs.map(name) is None
        except NotFound:
            # Opening it names the run that misses it.
            return False

    def _open_one(self, pair: tuple[RunRef, TableSchema], key_groups: int) -> RunReader:
        ref, schema = pair
        cache, fetch_bytes = self._cache, self._window_bytes
        return open_run(
            ref,
            schema,
            key_groups,
            self._store,
            self._blobs,
            cache,
            mapped=self._mapped,
            fetch_bytes=fetch_bytes,
            derived=self._blobs.derived,
        )


def _key(ref: RunRef) -> tuple[str, int]:
    """A run narrowed to fewer key groups is still the same file."""
    return ref.id, ref.footer_checksum
