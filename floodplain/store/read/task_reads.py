"""What one task reads, of all its tables: fetched in one batch of coalesced requests, in the background."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final

import numpy as np

from floodplain.settings import StoreSettings
from floodplain.store.read import scan
from floodplain.store.read.misses import Misses, misses
from floodplain.store.read.snapshot_files import SnapshotFiles
from floodplain.store.rows import layout
from floodplain.store.rows.definition import recorded
from floodplain.store.run.lookup_keys import LookupKeys, Source
from floodplain.store.run.open_runs import OpenRuns
from floodplain.store.run.read_ahead import ChunkOf, ReadAhead, requests
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.schema import TableSchema

_PORTION_BYTES: Final = 8 << 20
"""Decoded chunks that a portion of keys waits for. Smaller portions wait for less at a time, and each has fixed costs."""
_MOST_PORTIONS: Final = 8


def entries_of(table: str) -> str:
    """What entries of a table that rows name are called in ``TaskReads.note``. No table has such a name."""
    return f"{table}/entries"


class TaskReads:
    """Starts to fetch what a task will read as soon as it is known. As a context manager it ends its threads.

    Reads need not know of it: a chunk that is under way is waited for, and one that nobody announced is fetched as ever.
    Where reading waits for nothing, and with ``StoreSettings.hide_misses`` off, it fetches nothing.
    """

    def __init__(self, files: SnapshotFiles, open_runs: OpenRuns, settings: StoreSettings, groups: GroupRanges) -> None:
        self._files = files
        self._open_runs = open_runs
        self._groups = groups
        self._ahead: ReadAhead | None = None
        if open_runs.waits and settings.hide_misses:
            self._ahead = open_runs.read_ahead(settings.concurrent_reads, settings.read_ahead_bytes)
        self._missing_bytes = 0

    def note(self, read: Mapping[str, bool]) -> None:
        """For the next task: which tables this one has read by key, and of which (``entries_of``) the entries that rows name."""
        self._open_runs.was_read.update(read)

    def scans(self, until_ms: Mapping[str, int]) -> None:
        """Fetches what scans of these time tables up to these times will read."""
        if self._ahead is None:
            return

        def wanted(manifest: Manifest) -> list[ChunkOf]:
            chunks = list[ChunkOf]()
            for table, (schema, sources) in self._opened(manifest, list(until_ms)).items():
                times = (layout.sub_of_time(-(1 << 63)), layout.sub_of_time(until_ms[table] + 1))
                for source in sources:
                    of_scan = scan.chunks_wanted(source, schema, self._groups, manifest.key_groups, times)
                    chunks += [(source.reader, chunk) for chunk in source.reader.far(of_scan)]
            return chunks

        self._ahead.add(requests(self._files.read(wanted)))

    def lookups(self, tables: Mapping[str, bool], hashes: np.ndarray) -> np.ndarray:
        """Fetches what lookups of keys with these hashes will read. Returns per key whether some of it is not at hand.

        Of these tables, those count that the last task has read; for the first, ``tables`` has what counts.
        """
        missing = np.zeros(len(hashes), bool)
        likely = [table for table, otherwise in tables.items() if self._open_runs.was_read.get(table, otherwise)]
        if self._ahead is None or not likely or not len(hashes):
            return missing
        return self._begin(likely, LookupKeys([], hashes))

    def entries(self, table: str, hashes: np.ndarray, subs: np.ndarray) -> np.ndarray:
        """As ``lookups``, of entries with these sub-keys, by hash. Requires: ``reads_entries`` of the table."""
        return self._begin([table], LookupKeys([], hashes, subs))

    def reads_entries(self, table: str) -> bool:
        """Whether to call ``entries``: the last task has read entries that its rows named."""
        return self._ahead is not None and self._open_runs.was_read.get(entries_of(table), False)

    def _begin(self, tables: Sequence[str], lookup_keys: LookupKeys) -> np.ndarray:
        assert self._ahead is not None
        order = lookup_keys.order()
        ordered = lookup_keys if order is None else lookup_keys.take(order)

        def wanted(manifest: Manifest) -> list[Misses]:
            opened = self._opened(manifest, tables).values()
            return [misses(ordered, sources, schema) for schema, sources in opened]

        missed = self._files.read(wanted)
        chunks = [chunk for each in missed for chunk in each.chunks]
        self._missing_bytes += sum(int(reader.decoded_bytes[chunk]) for reader, chunk in chunks)
        self._ahead.add(requests(chunks))
        missing = np.zeros(len(ordered.hashes), bool)
        for each in missed:
            missing[slice(None) if order is None else order] |= each.keys
        return missing

    def portions(self, missing: np.ndarray) -> list[np.ndarray]:
        """The numbers of the keys, in portions to process in turn: first those at hand, then others as they arrive."""
        count = min(max(self._missing_bytes // _PORTION_BYTES, 1), _MOST_PORTIONS)
        parts = [np.flatnonzero(~missing), *np.array_split(np.flatnonzero(missing), count)]
        return [part for part in parts if len(part)]

    def _opened(self, manifest: Manifest, tables: Sequence[str]) -> dict[str, tuple[TableSchema, list[Source]]]:
        """The runs of these tables, opened all at once."""
        of_table = partial(self._open_runs.sources, manifest, groups=self._groups)
        opened = dict(zip(tables, self._open_runs.on_each(of_table, tables), strict=True))
        self._open_runs.on_each(lambda source: source.reader.load_parts(), [each for of in opened.values() for each in of])
        return {table: (recorded(manifest.schemas[table][-1]), of) for table, of in opened.items()}

    def __enter__(self) -> "TaskReads":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ahead is not None:
            self._ahead.close()
