"""Blobs as objects of S3, Google Cloud Storage, Azure, or a look-alike."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import obstore
import pyarrow as pa

from floodplain.errors import NotFound, Refused
from floodplain.metrics import Counters
from floodplain.settings import RetrySettings
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable, whole
from floodplain.tiers.connect import check_not_forked, connect
from floodplain.tiers.meter import DELETE, GET, HEAD, LIST, PUT, Meter
from floodplain.tiers.objecterrors import object_error, past_the_end
from floodplain.tiers.paths import checked_blob, checked_prefix, is_blob
from floodplain.tiers.ranges import EMPTY, GAP_BYTES, checked_ranges, coalesce, cut
from floodplain.tiers.redact import without_credentials

PAGE_NAMES = 1000


class ObjectBlobs(Blobs):
    """One object per blob, through obstore.

    Asks once: ``Retrying`` asks again. A request is given up after ``retry.timeout_ms``. Endpoint, region and
    credentials come from ``options`` (obstore's names) or else from the environment. ``create`` is one conditional
    PUT, so a blob is at most what one PUT may hold (5 GiB on S3).
    """

    tier = "object"

    def __init__(self, url: str, options: Mapping[str, str], retry: RetrySettings, counters: Counters) -> None:
        self.url = without_credentials(url)
        self._meter = Meter(counters, self.tier)
        self._store = connect(url, options, retry)

    def create(self, name: str, data: Writable) -> None:
        self._write(name, whole(data), "create")

    def put(self, name: str, data: Data) -> None:
        self._write(name, data, "overwrite")

    def get(self, name: str) -> pa.Buffer:
        with self._asking(f"reading {checked_blob(name)}", GET):
            data = pa.py_buffer(obstore.get(self._store, name).bytes())
        self._meter.read(data.size)
        return data

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        checked_blob(name)
        wanted = coalesce(checked_ranges(name, ranges), GAP_BYTES)
        try:
            pieces = self._fetch(name, wanted)
        except _PastTheEnd:
            size = self.size(name)
            pieces = self._fetch(name, [(offset, length) for offset, length in wanted if offset < size])
        return cut(ranges, [(0, EMPTY), *pieces])

    def map(self, name: str) -> pa.Buffer | None:
        checked_blob(name)
        return None

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """Sorted here: not every store lists in name order, and a caller resumes behind the last name it saw."""
        folder = checked_prefix(prefix)[: prefix.rfind("/") + 1]
        blobs: list[tuple[str, int]] = []
        with self._asking(f"listing {prefix!r}", LIST):
            for page in obstore.list(self._store, folder or None, offset=_offset(after), chunk_size=PAGE_NAMES):
                blobs += [(meta["path"], meta["size"]) for meta in page]
        self._meter.count_requests(len(blobs) // PAGE_NAMES, LIST)
        for name, size in sorted(blobs):
            if name.startswith(prefix) and name > after and is_blob(name):
                yield BlobInfo(name, size)

    def top(self) -> Iterable[str]:
        with self._asking("listing what is there", LIST):
            listing = obstore.list_with_delimiter(self._store)
        names = [*listing["common_prefixes"], *(meta["path"] for meta in listing["objects"])]
        return [name.partition("/")[0] for name in names]

    def delete(self, names: Iterable[str]) -> None:
        checked = [checked_blob(name) for name in names]
        for start in range(0, len(checked), PAGE_NAMES):
            self._delete(checked[start : start + PAGE_NAMES])

    def size(self, name: str) -> int:
        with self._asking(f"measuring {checked_blob(name)}", HEAD):
            return int(obstore.head(self._store, name)["size"])

    def modified_ms(self, name: str) -> int | None:
        with self._asking(f"asking for the time of {checked_blob(name)}", HEAD):
            return int(obstore.head(self._store, name)["last_modified"].timestamp() * 1000)

    def _write(self, name: str, data: Data, mode: Any) -> None:
        view = memoryview(data).cast("B")
        try:
            with self._asking(f"writing {checked_blob(name)}", PUT):
                obstore.put(self._store, name, view, mode=mode, use_multipart=False)
        except NotFound as error:
            raise Refused(f"{error}; a write found nothing to write to") from error
        self._meter.wrote(len(view))

    def _fetch(self, name: str, wanted: Sequence[Range]) -> Sequence[tuple[int, pa.Buffer]]:
        if not wanted:
            return []
        starts, lengths = zip(*wanted, strict=True)
        with self._asking(f"reading {name}", GET, requests=len(wanted)):
            try:
                got = obstore.get_ranges(self._store, name, starts=starts, lengths=lengths, coalesce=0)
            except Exception as error:
                if past_the_end(error):
                    raise _PastTheEnd from None
                raise
        pieces = [pa.py_buffer(piece) for piece in got]
        self._meter.read(sum(piece.size for piece in pieces))
        return [*zip(starts, pieces, strict=True)]

    def _delete(self, names: Sequence[str]) -> None:
        try:
            with self._asking(f"deleting {len(names)} blobs", DELETE):
                obstore.delete(self._store, names)
        except NotFound:
            # Some stores make a missing name an error, which may have left others undeleted.
            if len(names) > 1:
                for name in names:
                    self._delete([name])

    @contextmanager
    def _asking(self, doing: str, kind: str, requests: int = 1) -> Iterator[None]:
        check_not_forked()
        try:
            with self._meter.asking(kind, requests):
                yield
        except _PastTheEnd:
            raise
        except Exception as error:
            raise object_error(error, f"{doing} at {self.url}") from error


def _offset(after: str) -> str | None:
    """Where a store may start its listing for names greater than ``after``: a little before it.

    SeaweedFS, told to start after a name that is also a folder, skips what is in the folder. Without its last
    character the name may still be a folder's, but then all names in that one are smaller than ``after``.
    """
    earlier = after[:-1]
    return None if not earlier or earlier.endswith("/") or after[-1] in "-." else earlier


class _PastTheEnd(Exception):
    pass
