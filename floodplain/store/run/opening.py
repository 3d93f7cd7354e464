"""Opens a run: mapped from a directory, from the cache of this machine, or by requests."""

import pyarrow as pa

from floodplain.errors import NotFound
from floodplain.store.run import validation
from floodplain.store.run.cached_run import opened
from floodplain.store.run.chunk_cache import ChunkCache
from floodplain.store.run.footer import Footer, damaged, decode
from floodplain.store.run.reader import FETCH_BYTES, RunReader
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.derived import DerivedCache
from floodplain.versions.records.edit import RunRef
from floodplain.versions.records.schema import TableSchema


def open_run(
    ref: RunRef,
    table: TableSchema,
    key_groups: int,
    store: str,
    blobs: Blobs,
    cache: ChunkCache,
    *,
    mapped: bool = True,
    fetch_bytes: int = FETCH_BYTES,
    derived: DerivedCache | None = None,
) -> RunReader:
    """Reads the footer only, or all of a small run. Raises ``Corrupt`` if the file is not the one that ``ref`` vouches for.

    ``table`` is the schema that it was written under. ``mapped`` off: what is read is copied from the file, also where it could
    be mapped. ``fetch_bytes``: of chunks, decoded, that a lookup fetches at a time. ``derived``: where decoded runs are cached.
    """
    validation.check_ref(ref)
    try:
        body = blobs.map(ref.object) if mapped else None
        if body is not None:
            footer, run = _from_map(ref, body, store)
            return RunReader(ref, footer, table, key_groups, run, blobs, cache, fetch_bytes)
        if derived is not None:
            footer, cached = opened(ref, store, blobs, derived, copied=not mapped)
            return RunReader(ref, footer, table, key_groups, None, blobs, cache, fetch_bytes, cached)
        place = (ref.offset + ref.length - ref.footer_length, ref.footer_length)
        data = blobs.get_ranges(ref.object, [place])[0]
    except NotFound as error:
        raise damaged(ref, "the file", "no such file") from error
    return RunReader(ref, decode(data, ref, store), table, key_groups, None, blobs, cache, fetch_bytes)


def _from_map(ref: RunRef, body: pa.Buffer, store: str) -> tuple[Footer, pa.Buffer]:
    if body.size != ref.object_size:
        raise damaged(ref, f"{ref.object_size} bytes", f"{body.size} bytes")
    run = body.slice(ref.offset, ref.length)
    return decode(run.slice(ref.length - ref.footer_length), ref, store), run
