"""The format of runs: what is cut where, what the footer says of it, and that a reader takes only what it needs."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import Corrupt
from floodplain.keys import key_group
from floodplain.metrics import TIER_READ_BYTES, Counters
from floodplain.settings import RetrySettings
from floodplain.store.rows import layout
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.rows.layout import HASH
from floodplain.store.run import reader as runreader
from floodplain.store.run.chunk_cache import ChunkCache
from floodplain.store.run.interpolation_index import Directory
from floodplain.store.run.opening import open_run
from floodplain.store.run.reader import RunReader
from floodplain.store.run.validation import check_chunk_order
from floodplain.store.run.writer import ALIGNMENT, BuiltRun, pack
from floodplain.store.store import Store
from floodplain.tiers.objects import ObjectBlobs
from tests.store import forge

TABLES = {
    "value": value_table("t", {"k": pa.int64()}, {"v": pa.string()}),
    "ordered": list_table("t", {"k": pa.int64()}, {"v": pa.string()}),
    "hashed": map_table("t", {"k": pa.int64()}, {"s": pa.int64()}, {"v": pa.string()}),
    "time": timer_table("t", {"k": pa.int64()}, {"v": pa.string()}),
}
SUBKEYS = {"ordered": "position", "hashed": "s", "time": "at"}


def rows_of(shape: str, count: int, per_key: int = 1) -> pa.Table:
    """Rows in no order; many per key where the shape allows it."""
    columns = {"k": [n // per_key for n in range(count)], "v": [f"value {n}" for n in range(count)]}
    if shape in SUBKEYS:
        columns[SUBKEYS[shape]] = [(n * 7919) % 100_003 for n in range(count)]
    return pa.table(columns).take(np.random.default_rng(1).permutation(count))


def a_run(shape: str, count: int, per_key: int = 1, **option: object) -> tuple[Store, BuiltRun]:
    store = forge.with_table(TABLES[shape])
    return store, forge.built(store, "t", rows_of(shape, count, per_key), **option)


def opened(store: Store, run: BuiltRun, counters: Counters | None = None) -> RunReader:
    blobs = ObjectBlobs("memory:///", {}, RetrySettings(), counters or Counters())
    data, (ref,) = pack([run], "runs/x")
    blobs.create("runs/x", data)
    return open_run(ref, store.head.schemas["t"][-1], store.head.key_groups, store.head.store, blobs, ChunkCache(0))


@pytest.fixture(params=TABLES)
def shape(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_run_is_an_arrow_stream_that_anyone_can_read(shape: str, compression: str | None) -> None:
    _, run = a_run(shape, 500, 5 if shape != "value" else 1, compression=compression, chunk_bytes=4096)
    with pa.ipc.open_stream(pa.py_buffer(bytes(run.data))) as reader:
        batches = list(reader)
    footer = forge.footer_of(run)
    assert [len(batch) for batch in batches] == footer.column("count").tolist()
    assert len(batches) > 3
    assert sum(map(len, batches)) == run.ref.rows == 500


def test_the_footer_tells_of_each_chunk(shape: str) -> None:
    _, run = a_run(shape, 500, 5 if shape != "value" else 1, chunk_bytes=2048)
    footer = forge.footer_of(run)
    rows = forge.physical_of(run)
    hashes = rows["_hash"].to_numpy()
    groups = key_group(hashes, forge.GROUPS)
    ends = np.cumsum(footer.column("count")).astype(int)
    major = groups if shape == "time" else hashes
    assert footer.column("last").tolist() == major[ends - 1].tolist()
    assert footer.column("first").tolist() == major[[0, *ends[:-1]]].tolist()
    if shape != "value":
        assert footer.column("last_sub").tolist() == rows["_sub"].to_numpy()[ends - 1].tolist()
    assert set(np.unique(groups)) == {group for low, high in footer.groups for group in range(low, high)}
    assert footer.unique == (shape == "value")


@pytest.mark.parametrize("chunk_bytes", [1, 64, 1000, 4096, 1 << 20])
def test_chunks_are_about_the_size_asked_for(chunk_bytes: int) -> None:
    _, run = a_run("value", 2000, chunk_bytes=chunk_bytes)
    footer = forge.footer_of(run)
    counts = footer.column("count").astype(int)
    target = max(1, int(2000 * chunk_bytes / forge.physical_of(run).nbytes))
    assert counts.sum() == 2000
    assert counts.max() <= target
    assert (counts[:-1] > target // 2).all()


def test_chunks_are_cut_where_a_key_group_begins_if_one_does_in_time() -> None:
    _, run = a_run("value", 4000, chunk_bytes=30_000)
    groups = key_group(forge.physical_of(run)["_hash"].to_numpy(), forge.GROUPS)
    starts = np.cumsum(forge.footer_of(run).column("count")).astype(int)[:-1]
    assert len(starts) >= 3
    assert (groups[starts] != groups[starts - 1]).all()


def test_a_cut_falls_inside_a_key_group_that_is_too_large() -> None:
    _, run = a_run("hashed", 1000, 1000, chunk_bytes=2048)
    footer = forge.footer_of(run)
    assert len(footer.column("count")) > 10
    assert len({*footer.column("first").tolist(), *footer.column("last").tolist()}) == 1


def test_only_the_chunks_asked_for_are_read() -> None:
    counters = Counters()
    store, run = a_run("value", 20_000, chunk_bytes=1 << 14, compression="zstd")
    reader = opened(store, run, counters)
    assert counters.get(TIER_READ_BYTES, "object") == run.ref.footer_length
    length = forge.footer_of(run).column("length")
    chunks = reader.fetch([3])
    assert list(chunks) == [3]
    assert counters.get(TIER_READ_BYTES, "object") == run.ref.footer_length + int(length[3])


def test_find_is_a_plain_search(shape: str) -> None:
    """All rows of a hash, and of a hash and sub-key, whichever chunks they lie in."""
    per_key = 1 if shape == "value" else 40
    store, run = a_run(shape, 400, per_key, chunk_bytes=512)
    reader = opened(store, run)
    rows = forge.physical_of(run)
    hashes = rows["_hash"].to_numpy()
    lookup_keys = np.unique(np.concatenate([np.unique(hashes)[::3], np.array([0, 5, 2**64 - 1], np.uint64)]))
    value = rows.column_names[-1]
    found = []
    for hits in reader.find(lookup_keys):
        found += zip(
            lookup_keys[hits.key_number].tolist(), hits.chunk.column(value).take(pa.array(hits.row)).to_pylist(), strict=True
        )
    wanted = set(lookup_keys.tolist())
    assert sorted(found) == sorted((h, v) for h, v in zip(hashes.tolist(), rows[value].to_pylist(), strict=True) if h in wanted)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=60, unique=True),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=10),
    st.sampled_from(["ordered", "hashed", "time"]),
    st.sampled_from([1, 100, 400]),
)
def test_find_by_sub_key_is_a_plain_search(
    entries: list[tuple[int, int]], asked: list[tuple[int, int]], shape: str, chunk_bytes: int
) -> None:
    store = forge.with_table(TABLES[shape])
    columns = {"k": [k for k, _ in entries], SUBKEYS[shape]: [s for _, s in entries], "v": [f"{k}/{s}" for k, s in entries]}
    run = forge.built(store, "t", pa.table(columns), chunk_bytes=chunk_bytes)
    forge.commit_runs(store, run)
    store = forge.reopen(store.history.blobs)
    keys = pa.table({"k": [k for k, _ in asked], SUBKEYS[shape]: [s for _, s in asked]})
    lookup = store.snapshot().table("t").multi_get(keys)
    expected = {n: f"{k}/{s}" for n, (k, s) in enumerate(asked) if (k, s) in entries}
    assert dict(zip(lookup.key_number.tolist(), lookup.rows["v"].to_pylist(), strict=True)) == expected


def test_an_object_holds_several_runs_each_aligned() -> None:
    store = forge.with_table(TABLES["value"])
    runs = [forge.built(store, "t", rows_of("value", count)) for count in (1, 7, 100)]
    data, refs = pack(runs, "runs/x")
    assert [ref.offset % ALIGNMENT for ref in refs] == [0, 0, 0]
    assert {ref.object_size for ref in refs} == {len(data)}
    for run, ref in zip(runs, refs, strict=True):
        assert bytes(data)[ref.offset : ref.offset + ref.length] == bytes(run.data)


def test_the_reference_tells_of_deletes_merges_and_ends() -> None:
    schema = value_table("t", {"k": pa.int64()}, {"n": Column(pa.int64(), merge="sum", ttl_ms=50)}, ttl_ms=100)
    store = forge.with_table(schema)
    rows = pa.table({"k": [1], "n": [1]})
    put, merge = forge.built(store, "t", rows), forge.built(store, "t", rows, "merge")
    delete, clear = (forge.built(store, "t", rows.select(["k"]), op) for op in ("delete", "clear"))
    assert [(run.ref.deletes, run.ref.merges) for run in (put, merge, delete, clear)] == [
        (False, False),
        (False, True),
        (True, False),
        (True, False),
    ]
    assert put.ref.first_expiry_ms == merge.ref.first_expiry_ms == forge.NOW_MS + 50
    assert delete.ref.first_expiry_ms == 0
    assert put.ref.last_expiry_ms == merge.ref.last_expiry_ms == forge.NOW_MS + 100
    assert delete.ref.last_expiry_ms == 0


def test_equal_rows_make_equal_bytes() -> None:
    store = forge.with_table(TABLES["hashed"])
    rows = rows_of("hashed", 300, 7)
    shuffled = rows.take(np.random.default_rng(9).permutation(300))
    for option in ({}, {"compression": "zstd", "filtered": True}):
        assert bytes(forge.built(store, "t", rows, **option).data) == bytes(forge.built(store, "t", shuffled, **option).data)


def test_a_run_of_another_schema_version_is_not_taken_for_ours() -> None:
    store, run = a_run("value", 10)
    other = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": pa.int64()}))
    _, (ref,) = pack([run], "runs/x")
    blobs = ObjectBlobs("memory:///", {}, RetrySettings(), Counters())
    blobs.create("runs/x", run.data)
    with pytest.raises(Corrupt, match="another Arrow schema"):
        open_run(ref, other.head.schemas["t"][-1], forge.GROUPS, store.head.store, blobs, ChunkCache(0))


def test_wide_and_nested_rows_fit_whatever_the_chunk_size() -> None:
    wide = pa.struct([(f"c{n}", pa.list_(pa.int8())) for n in range(60)])
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": wide, **{f"s{n}": pa.string() for n in range(30)}}))
    rows = pa.table({"k": range(50), "v": pa.nulls(50, wide)})
    for chunk_bytes in (1, 1 << 20):
        run = forge.built(store, "t", rows, chunk_bytes=chunk_bytes)
        assert len(forge.physical_of(run)) == 50


@pytest.mark.parametrize("chunk_bytes", [1, 300, 1 << 20])
def test_rows_in_pieces_make_a_run_with_all_of_them(shape: str, chunk_bytes: int) -> None:
    """Empty pieces too, and chunks smaller than any piece."""
    store, run = a_run(shape, 60, 5 if shape != "value" else 1)
    whole = forge.physical_of(run).combine_chunks()
    pieces = pa.concat_tables([whole.slice(0, 0), whole.slice(0, 20), whole.slice(20, 0), whole.slice(20), whole.slice(60)])
    again = forge.raw_run(store, "t", pieces, chunk_bytes=chunk_bytes)
    assert forge.physical_of(again).combine_chunks().equals(whole)
    footer = forge.footer_of(again)
    assert (footer.column("count") > 0).all()
    check_chunk_order(footer, again.ref)


@pytest.mark.parametrize("cuts", [(58,), (20, 58), (15, 30, 45, 59), tuple(range(3, 60, 3)), (1, 2, 40, 41)])
def test_small_pieces_join_their_neighbours_and_no_row_is_lost_or_moved(cuts: tuple[int, ...]) -> None:
    """Wherever the pieces end and whatever is too small for a chunk, the last piece above all."""
    store, run = a_run("value", 60)
    whole = forge.physical_of(run).combine_chunks()
    ends = (0, *cuts, 60)
    pieces = pa.concat_tables([whole.slice(low, high - low) for low, high in pairwise(ends)])
    for chunk_bytes in range(100, int(whole.nbytes), 100):
        again = forge.raw_run(store, "t", pieces, chunk_bytes=chunk_bytes)
        assert forge.physical_of(again).combine_chunks().equals(whole), chunk_bytes
        check_chunk_order(forge.footer_of(again), again.ref)


def test_a_directory_is_made_once_of_a_chunk_that_is_asked_for_much_of_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never for a few keys, nor for rows by sub-key, and once it is there it serves them all."""
    made = []

    class Counted(Directory):
        def __init__(self, present: np.ndarray) -> None:
            made.append(len(present))
            super().__init__(present)

    monkeypatch.setattr(runreader, "Directory", Counted)
    store, run = a_run("value", 400, chunk_bytes=4096)
    reader = opened(store, run)
    assert len(reader.count) > 1
    everything = np.sort(layout.numbers(forge.physical_of(run).combine_chunks(), HASH))
    for hashes, expected in (
        (everything[::20], []),
        (everything, reader.count.tolist()),
        (everything[::4], reader.count.tolist()),
        (everything[:1], reader.count.tolist()),
    ):
        found = [hashes[hits.key_number][place] for hits in reader.find(hashes) for place in range(len(hits.row))]
        assert found == hashes.tolist()
        assert made == expected


@pytest.mark.parametrize(("last", "alone"), [(49, False), (50, True), (51, True)])
def test_a_last_piece_that_is_half_a_chunk_is_large_enough(last: int, alone: bool) -> None:
    """A smaller one goes with the piece before it."""
    store = forge.with_table(value_table("t", {"k": pa.int64()}, {"v": pa.int64()}))
    rows = {"k": range(100 + last), "v": range(100 + last)}
    whole = forge.physical_of(forge.built(store, "t", pa.table(rows))).combine_chunks()
    pieces = pa.concat_tables([whole.slice(0, 100), whole.slice(100)])
    made = forge.raw_run(store, "t", pieces, chunk_bytes=2 * whole.slice(0, 50).nbytes)
    assert forge.physical_of(made).combine_chunks().equals(whole)
    assert (100 in np.cumsum(forge.footer_of(made).column("count"))) is alone
