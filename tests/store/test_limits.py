"""What is read at a time is bounded in bytes, and what is read does not depend on the bound."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from floodplain.errors import BadInput, Corrupt
from floodplain.settings import MOST_WINDOW_BYTES, StoreSettings
from floodplain.store.compaction.rewrite import rewrite
from floodplain.store.read import scan
from floodplain.store.rows import large_tables
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.run.reader import RunReader
from floodplain.store.run.writer import RunBuilder
from floodplain.store.store import Store
from floodplain.versions.records.schema import TableSchema
from tests.store import forge, world

NESTED = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]))
WIDE = {f"w{n}": pa.binary(64) for n in range(8)}
KEY = {"k": pa.int64()}
TABLES: dict[str, TableSchema] = {
    "strings": value_table("t", KEY, {"v": pa.string(), "n": Column(pa.int64(), merge="sum")}),
    "nested": value_table("t", KEY, {"v": NESTED}),
    "wide": value_table("t", KEY, WIDE),
    "map": map_table("t", KEY, {"s": pa.string()}, {"v": pa.string()}),
    "list": list_table("t", KEY, {"v": pa.string()}, position="s"),
    "expiring": map_table("t", KEY, {"s": pa.string()}, {"v": pa.string()}, ttl_ms=2),
    "timers": timer_table("t", KEY, {"v": pa.string()}, time="s"),
}
LIMITS = ((1, "object"), (900, "mapped"), (20_000, "memory"))
"""Each on a tier of its own: compressed, mapped, neither."""
TIERS = sorted(world.TIERS)


def sub_keys(shape: str, rng: np.random.Generator, count: int) -> dict[str, Any]:
    numbers = rng.integers(0, 60, count)
    match shape:
        case "strings" | "nested" | "wide":
            return {}
        case "map" | "expiring":
            return {"s": [f"s{number}" for number in numbers]}
        case _:
            return {"s": numbers}


def values(shape: str, rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Of sizes that differ a hundredfold, most of them repetitive."""
    sizes = rng.choice([0, 3, 300], count, p=[0.2, 0.6, 0.2]).tolist()
    if shape == "nested":
        return {"v": pa.array([[{"a": size, "b": ["x" * 9] * (size // 3)}] for size in sizes], NESTED)}
    if shape == "wide":
        return {name: pa.array([bytes([size % 256]) * 64 for size in sizes], type_) for name, type_ in WIDE.items()}
    return {"v": [chr(97 + size % 26) * size for size in sizes], **({"n": sizes} if shape == "strings" else {})}


def changes(shape: str, epoch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Few keys with many entries where there are sub-keys: one key then fills many windows."""
    rng, count = np.random.default_rng(epoch), 150
    keyed = shape in ("strings", "nested", "wide")
    keys = rng.choice(250, count, replace=False) if keyed else rng.integers(0, 5, count)
    yield "put", {"k": keys, **sub_keys(shape, rng, count), **values(shape, rng, count)}
    if epoch:
        some = keys[:40]
        yield "delete", {"k": some, **sub_keys(shape, rng, len(some))}
        if not keyed:
            yield "clear", {"k": [epoch % 5]}
            yield "put", {"k": [epoch % 5] * 30, **sub_keys(shape, rng, 30), **values(shape, rng, 30)}
        if shape == "strings":
            yield "merge", {"k": keys[20:80], "n": np.ones(60, np.int64)}


def filled(shape: str, tier: str, window_bytes: int, chunk_bytes: int = 700) -> Store:
    chosen = replace(
        forge.SETTINGS, window_bytes=window_bytes, chunk_bytes=chunk_bytes, memory_bytes=0, inline_bytes=0, key_groups=4
    )
    store = forge.with_table(TABLES[shape], world.memory(tier), chosen)
    for epoch in range(4):
        forge.write(store, "t", *changes(shape, epoch), now_ms=forge.NOW_MS + epoch)
    return store


def keys_of(store: Store) -> pa.Table:
    return pa.table({"k": pa.array([*range(250), 7, 3])})


def everything(store: Store) -> dict[str, Any]:
    """What each way of reading gives."""
    last = store.snapshot()
    table = last.table("t")
    found = table.multi_get(keys_of(store))
    read: dict[str, Any] = {
        "scan": pa.concat_tables([table.empty(), *table.scan()]).to_pylist(),
        "some": pa.concat_tables([table.empty(), *table.scan(groups=((0, 1), (2, 4)))]).to_pylist(),
        "to_arrow": table.to_arrow().to_pylist(),
        "count": table.count(),
        "lookup": (found.key_number.tolist(), found.rows.to_pylist()),
        "diffs": [_difference(store, older, last.epoch) for older in range(1, last.epoch)],
    }
    if table.schema.shape in ("ordered", "hashed"):
        read["pieces"] = [row for key in range(6) for piece in table.pieces(pa.table({"k": [key]})) for row in piece.to_pylist()]
    if table.schema.shape == "time":
        read["times"] = pa.concat_tables([table.empty(), *table.scan(times=(10, 33))]).to_pylist()
    if table.schema.shape == "value":
        read["aligned"] = table.multi_get(keys_of(store), columns=[f.name for f in table.schema.values]).aligned().to_pylist()
    return read


def _difference(store: Store, older: int, newer: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"added": [], "before": [], "after": [], "deleted": []}
    for change in store.diff("t", older, newer):
        for kind, rows in found.items():
            rows += getattr(change, kind).to_pylist()
    return {kind: sorted(rows, key=lambda row: (row["_hash"], row.get("_sub", 0))) for kind, rows in found.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    """All of it at once."""
    return {shape: everything(filled(shape, "memory", MOST_WINDOW_BYTES, 1 << 20)) for shape in TABLES}


@pytest.mark.parametrize(("limit", "tier"), LIMITS)
@pytest.mark.parametrize("shape", TABLES)
def test_every_way_of_reading_gives_the_same_whatever_the_limit(
    shape: str, limit: int, tier: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_tables, "MOST_BYTES", max(4 * limit, 10_000))
    assert everything(filled(shape, tier, limit)) == expected[shape]


@pytest.mark.parametrize("limit", [limit for limit, _ in LIMITS])
@pytest.mark.parametrize("shape", TABLES)
def test_compactions_and_rewrites_give_the_same_whatever_the_limit(shape: str, limit: int, expected: dict[str, Any]) -> None:
    store = filled(shape, "object", limit)
    manifest = store.head
    newest = manifest.runs["t"][:2]
    merged = scan_of(store, newest)
    list(store.compact(full=True, step_bytes=1))
    assert store.head != manifest
    assert store.verify().good
    table = store.snapshot().table("t")
    assert table.to_arrow().to_pylist() == expected[shape]["to_arrow"]
    assert merged == scan_of(filled(shape, "object", MOST_WINDOW_BYTES, 1 << 20), None)
    before = TABLES[shape]
    after = msgspec.structs.replace(before, id=before.id + 1)
    name = before.values[0].name
    updates = rewrite(store.history, store.open_runs, store.head, after, {name: (name, lambda given: given)})
    assert sum(run.rows for update in updates for run in update.added) == len(expected[shape]["to_arrow"])


def scan_of(store: Store, runs: Any) -> list[dict[str, Any]]:
    """The two newest epochs merged as a compaction above older runs does it: deletes and clears stay, each once."""
    runs, manifest = runs or store.head.runs["t"][:2], store.head
    schema = manifest.schemas["t"][-1]
    sources = store.open_runs.sources_of(runs, manifest)
    bottom = np.zeros(manifest.key_groups, bool)
    rules = scan.Rules(forge.NOW_MS + 3, keep_unfolded=True)
    windows = scan.plan(sources, schema, ((0, 4),), manifest.key_groups, store.history.settings.window_bytes)
    rows = [row for w in windows for row in scan.resolved(w, sources, schema, rules, bottom=bottom).to_pylist()]
    return sorted(rows, key=lambda row: (row["_hash"], row.get("_sub", 0), row["_op"], str(row)))


@pytest.mark.parametrize(("limit", "tier"), LIMITS)
@pytest.mark.parametrize("shape", TABLES)
def test_no_window_is_larger_than_the_limit_but_for_a_chunk_of_each_run(
    shape: str, limit: int, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk of each run is cut through at either end of a window, and one has the clears that count in it."""
    store, read_bytes, largest = filled(shape, tier, limit), list[int](), list[int]()
    fetch, resolved = RunReader.fetch, scan.resolved

    def counted(reader: RunReader, chunks: Any, held: Any = None) -> Any:
        read_bytes.append(int(reader.decoded_bytes[list(chunks)].sum()))
        largest.append(int(reader.decoded_bytes.max()))
        return fetch(reader, chunks, held)

    def window(*args: Any, **given: Any) -> pa.Table:
        read_bytes.clear()
        rows = resolved(*args, **given)
        windows.append(sum(read_bytes))
        return rows

    windows: list[int] = []
    monkeypatch.setattr(RunReader, "fetch", counted)
    monkeypatch.setattr(scan, "resolved", window)
    whole = sum(run.length for run in store.head.runs["t"])
    for _ in store.snapshot().table("t").scan():
        pass
    list(store.compact(full=True, step_bytes=1 << 30))
    runs = 4
    assert max(windows) <= limit + 3 * runs * max(largest)
    assert len(windows) >= min(whole // max(limit, 1), 8)


def test_a_window_may_begin_within_a_key_and_within_a_key_group() -> None:
    for shape in ("map", "list", "timers"):
        store = filled(shape, "memory", 900)
        sources = store.open_runs.sources(store.head, "t")
        windows = scan.plan(sources, TABLES[shape], ((0, 4),), 4, 900)
        assert sum(window.cut is not None for window in windows) > 5
        assert [window.begin for window in windows[1:]] == [window.end for window in windows[:-1]]


def test_keys_that_fit_are_not_cut_through() -> None:
    store = filled("map", "memory", 1 << 20)
    sources = store.open_runs.sources(store.head, "t")
    for window in scan.plan(sources, TABLES["map"], ((0, 4),), 4, 60_000):
        assert window.cut is None


@pytest.mark.parametrize("given", [0, -1, MOST_WINDOW_BYTES + 1, 1.5, "64MB", None])
def test_limits_that_make_no_sense(given: Any) -> None:
    with pytest.raises(BadInput, match="window_bytes"):
        StoreSettings(window_bytes=given)


def test_rows_larger_than_the_limit() -> None:
    chosen = replace(forge.SETTINGS, window_bytes=1000, chunk_bytes=500)
    store = forge.with_table(TABLES["strings"], settings=chosen)
    for epoch in range(3):
        forge.write(store, "t", ("put", {"k": range(20), "v": [str(epoch) * 50_000] * 20, "n": [epoch] * 20}))
    table = store.snapshot().table("t")
    assert max(map(len, table.scan())) == 1
    list(store.compact(full=True))
    assert set(store.snapshot().table("t").to_arrow()["v"].to_pylist()) == {"2" * 50_000}


def test_chunks_are_even_where_rows_are_not() -> None:
    """A list whose last entries are large: by the mean size of a row they would be one chunk."""
    store = forge.with_table(TABLES["list"])
    sizes = [1] * 5000 + [2000] * 100
    rows = pa.table({"k": [1] * len(sizes), "s": range(len(sizes)), "v": ["x" * size for size in sizes]})
    run = forge.built(store, "t", rows, chunk_bytes=4000)
    assert forge.footer_of(run).column("decoded").max() < 12_000


def test_the_decoded_size_of_chunks_is_recorded_and_checked() -> None:
    store = forge.with_table(TABLES["strings"])
    rows = pa.table({"k": range(500), "v": ["x" * 1000] * 500, "n": [1] * 500})
    for compression in (None, "zstd", "lz4"):
        run = forge.built(store, "t", rows, compression=compression, chunk_bytes=1 << 16)
        footer = forge.footer_of(run)
        decoded, stored = footer.column("decoded"), footer.column("length")
        assert 500_000 < decoded.sum() < 600_000
        assert (decoded > 5 * stored).all() if compression else (decoded == stored).all()
        lies = msgspec.structs.replace(footer, decoded=(decoded // 2).astype("<u8").tobytes())
        liar = forge.with_table(TABLES["strings"])
        lies = msgspec.structs.replace(lies, store=liar.head.store)
        forge.commit_runs(liar, forge.with_footer(run, lies))
        with pytest.raises(Corrupt, match="when decoded"):
            liar.snapshot().table("t").to_arrow()
        assert not liar.verify().good


@pytest.mark.parametrize("decoded", [b"\0" * 8, b"\xff" * 16])
def test_sizes_of_decoded_chunks_that_make_no_sense(decoded: bytes) -> None:
    store = forge.with_table(TABLES["strings"])
    run = forge.built(store, "t", pa.table({"k": range(2), "v": ["a", "b"], "n": [1, 1]}), chunk_bytes=1)
    forge.commit_runs(store, forge.with_footer(run, msgspec.structs.replace(forge.footer_of(run), decoded=decoded)))
    with pytest.raises(Corrupt, match="decoded chunks"):
        store.snapshot().table("t").to_arrow()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_runs_without_decoded_sizes_are_read(tier: str, compression: str | None) -> None:
    """Those of format 1. Their sizes are taken to be large, or known where they are mapped and not compressed."""
    store = forge.with_table(TABLES["strings"], world.memory(tier), replace(forge.SETTINGS, window_bytes=8 << 20))
    rows = pa.table({"k": range(500), "v": ["x" * 1000] * 500, "n": [1] * 500})
    run = forge.built(store, "t", rows, compression=compression, chunk_bytes=1 << 16)
    older = msgspec.structs.replace(forge.footer_of(run), decoded=b"")
    forge.commit_runs(store, forge.with_footer(run, older))
    (source,) = store.open_runs.sources(store.history.refresh(), "t")
    sizes = source.reader.decoded_bytes
    known = tier == "mapped" and compression is None
    assert (sizes == older.column("length")).all() if known else (sizes >= 4 << 20).all()
    assert sorted(store.snapshot().table("t").to_arrow()["k"].to_pylist()) == list(range(500))


@pytest.mark.parametrize("held_bytes", [0, 5000, None])
@pytest.mark.parametrize("shape", ["strings", "map", "timers"])
def test_a_run_is_the_same_whether_it_waits_on_disk_or_not(shape: str, held_bytes: int | None) -> None:
    store = filled(shape, "memory", 1 << 20)
    schema, options = TABLES[shape], forge.options(store, chunk_bytes=700, filtered=True)
    rows = forge.physical_of(forge.built(store, "t", pa.table(dict(next(changes(shape, 3))[1]))))
    whole = RunBuilder(schema, rows.schema, options)
    whole.add(rows)
    expected = whole.finish(1, 1, 1)
    pieces = RunBuilder(schema, rows.schema, options, held_bytes)
    pieces.add(rows)
    built = pieces.finish(1, 1, 1)
    assert (built.ref, bytes(built.data)) == (expected.ref, bytes(expected.data))
    assert len(built.data.parts) == 1 if held_bytes is not None else len(built.data.parts) > 1  # type: ignore[union-attr]


def test_rows_taken_from_what_no_array_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rows = pa.table({"n": range(3000), "v": [chr(97 + n % 26) * int(n) for n in rng.integers(0, 200, 3000)]})
    pieces = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 1999), rows.slice(2000)])
    for order in (rng.permutation(3000), np.arange(3000), rng.integers(0, 3000, 50), np.array([2999]), np.empty(0, np.int64)):
        expected = rows.take(pa.array(order, pa.int64()))
        for most in (1, 1000, 40_000, 1 << 30):
            monkeypatch.setattr(large_tables, "MOST_BYTES", most)
            taken = large_tables.take(pieces, order)
            assert taken.equals(expected)
            if most == 40_000 and len(order) == 3000:
                assert max(chunk.nbytes for chunk in taken["v"].chunks) <= most


@pytest.mark.parametrize("shape", ["strings", "map"])
def test_keys_asked_for_again_and_again(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are stored, and many are asked for."""
    store = filled(shape, "mapped", 1 << 20, 1 << 20)
    table, keys = store.snapshot().table("t"), pa.table({"k": [1, 2, 3] * 40})
    whole = table.multi_get(keys)
    monkeypatch.setattr(large_tables, "MOST_BYTES", whole.rows.nbytes // 4)
    found = table.multi_get(keys)
    assert found.rows.equals(whole.rows) and found.key_number.tolist() == whole.key_number.tolist()
    assert found.rows.column("v").num_chunks > 1
    assert max(chunk.nbytes for chunk in found.rows.column("v").chunks) <= whole.rows.nbytes // 2


def test_a_dictionary_counts_as_what_it_stands_for() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 100, pa.int32()), pa.array(["x" * 1000, "y"]))
    rows = pa.table({"v": pa.chunked_array([values, values])})
    assert large_tables.unpacked_bytes(rows) >= 200 * 1001
    pieces = list(large_tables.slices(rows, 20_000))
    assert pa.concat_tables(pieces).to_pylist() == rows.to_pylist()
    assert max(large_tables.unpacked_bytes(piece) for piece in pieces) <= 20_000


@pytest.mark.parametrize("shape", TABLES)
def test_a_delta_larger_than_an_array(shape: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tables, "MOST_BYTES", 10_000)
    assert everything(filled(shape, "mapped", 32 << 20)) == expected[shape]
