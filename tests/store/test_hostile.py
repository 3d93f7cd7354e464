"""Files that carry valid checksums and lie: each lie ends in a Floodplain error, whichever way the store is read."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from floodplain.clock import SeededRandomness
from floodplain.errors import Corrupt, FloodplainError
from floodplain.metrics import Counters
from floodplain.store.rows.definition import Column, list_table, map_table, timer_table, value_table
from floodplain.store.run.footer import Footer, Section
from floodplain.store.run.writer import BuiltRun
from floodplain.store.store import Store
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.log.commit import commit
from floodplain.versions.records.edit import CommitEpoch
from tests.store import forge

TABLES = {
    "value": value_table("t", {"user": pa.string()}, {"n": Column(pa.int64(), merge="sum"), "s": pa.string()}, ttl_ms=10**6),
    "ordered": list_table("t", {"user": pa.string()}, {"n": pa.int64(), "s": pa.string()}),
    "hashed": map_table("t", {"user": pa.string()}, {"page": pa.string()}, {"n": pa.int64(), "s": pa.list_(pa.string())}),
    "time": timer_table("t", {"user": pa.string()}, {"n": pa.int64(), "s": pa.string()}),
}
CHUNK_COLUMNS = ("first", "first_sub", "last", "last_sub", "offset", "length", "count", "checksum")
ABSURD = (-1, 0, 1, 2**31, 2**63, 2**64 - 1)
ROWS = 12


def columns(shape: str) -> pa.Table:
    data: dict[str, Any] = {"user": [f"u{n % 5}" if shape != "value" else f"u{n}" for n in range(ROWS)], "n": range(ROWS)}
    if shape == "ordered":
        data["position"] = range(ROWS)
    if shape == "hashed":
        data["page"] = [f"p{n}" for n in range(ROWS)]
    if shape == "time":
        data["at"] = [n * n - 9 for n in range(ROWS)]
    data["s"] = [["a", None]] * ROWS if shape == "hashed" else [f"s{n}" for n in range(ROWS)]
    return pa.table(data)


def store_of(shape: str, blobs: Blobs | None = None) -> Store:
    """With one table and one epoch, which is empty."""
    store = forge.with_table(TABLES[shape], blobs)
    commit(store.history, [CommitEpoch(1, ())])
    return store


def honest(store: Store, shape: str, **option: Any) -> BuiltRun:
    return forge.built(store, "t", columns(shape), **{"chunk_bytes": 150, **option})


def everything(store: Store) -> None:
    """Every way to read, all on a store just opened."""
    store = forge.reopen(store.history.blobs)
    table = store.snapshot().table("t")
    table.to_arrow()
    table.multi_get(pa.table({"user": [*(f"u{n}" for n in range(ROWS)), "absent"]}))
    subkeys = [field.name for field in table.schema.subkeys]
    if subkeys:
        table.multi_get(columns(table.schema.shape).select(["user", *subkeys]))
    list(store.diff("t", 1, store.head.epoch))
    list(store.compact(full=True))
    store.snapshot().table("t").to_arrow()


def refused(store: Store) -> bool:
    """Whether reading or verifying ends in a Floodplain error; any other error propagates."""
    try:
        everything(store)
        return not forge.reopen(store.history.blobs).verify().good
    except FloodplainError:
        return True


@pytest.fixture(params=TABLES)
def shape(request: pytest.FixtureRequest) -> str:
    return request.param


Lying = Callable[..., bool]


@pytest.fixture(params=["memory", "mapped"])
def lying(request: pytest.FixtureRequest, shape: str, tmp_path: Path) -> Lying:
    """Commits a run with a changed footer and reference; whether it was refused."""
    numbers = iter(range(10**6))

    def run(change: Callable[[Footer], Footer | bytes] | None = None, **ref: Any) -> bool:
        mapped = request.param == "mapped"
        root = tmp_path / str(next(numbers))
        blobs = DirectoryBlobs(root, sync=False, randomness=SeededRandomness(5), counters=Counters()) if mapped else None
        store = store_of(shape, blobs)
        built = honest(store, shape, filtered=not mapped)
        if change is not None:
            built = forge.with_footer(built, change(forge.footer_of(built)))
        forge.commit_runs(store, built, **ref)
        return refused(store)

    return run


def test_the_honest_run_is_accepted(lying: Lying) -> None:
    assert not lying()


@pytest.mark.parametrize("name", ["offset", "length", "footer_length", "footer_checksum", "object_size", "rows", "schema_id"])
def test_a_reference_that_lies(lying: Lying, name: str) -> None:
    true = {"offset": 0, "schema_id": 1}
    for value in ABSURD:
        assert lying(**{name: value}) or value == true.get(name)


@pytest.mark.parametrize("name", ["low", "high"])
def test_a_recency_that_lies(lying: Lying, name: str) -> None:
    assert all(lying(**{name: value}) for value in ABSURD)


@pytest.mark.parametrize("name", ["written_groups", "added", "first_expiry_ms"])
def test_hints_may_be_anything(lying: Lying, name: str) -> None:
    """What only the policy and messages use."""
    for value in ABSURD:
        lying(**{name: value})


@pytest.mark.parametrize("groups", [((-5, 3),), ((0, 2**62),), ((5, 2),), ((100, 200),), ((2**63, 2**64 - 1),)])
def test_key_groups_that_do_not_exist(lying: Lying, groups: tuple[tuple[int, int], ...]) -> None:
    assert lying(groups=groups)


@pytest.mark.parametrize("name", ["../format", "/etc/passwd", "runs/none.run", "", "a" * 5000, "format", "tmp/x", "x\0y"])
def test_a_reference_that_points_elsewhere(lying: Lying, name: str) -> None:
    assert lying(object=name)


@pytest.mark.parametrize("table", ["none", "../t", ""])
def test_a_run_of_no_table(lying: Lying, table: str) -> None:
    assert lying(table=table)


def test_traits_that_lie(shape: str) -> None:
    """A run that hides its deletes would not be asked for them."""
    for op, trait in (("delete", "deletes"), ("merge", "merges")) if shape == "value" else (("delete", "deletes"),):
        store = store_of(shape)
        keys = columns(shape).drop_columns(["n", "s"] if op == "delete" else ["s"])
        forge.commit_runs(store, forge.built(store, "t", keys, op), **{trait: False})
        assert refused(store)


@pytest.mark.parametrize("name", ["magic", "store", "table", "schema_id", "low", "high", "rows"])
def test_a_footer_of_something_else(lying: Lying, name: str) -> None:
    for value in ("x", "") if name in ("magic", "store", "table") else ABSURD:
        if (name, value) != ("schema_id", 1):
            assert lying(lambda footer, value=value: msgspec.structs.replace(footer, **{name: value}))


@pytest.mark.parametrize("name", CHUNK_COLUMNS)
def test_chunks_that_are_not_there(lying: Lying, name: str) -> None:
    def with_number(footer: Footer, at: int, value: int) -> Footer:
        column = footer.column(name).copy()
        column[at] = value
        return msgspec.structs.replace(footer, **{name: column.tobytes()})

    for at in (0, -1):
        for value in ABSURD[1:]:
            harmless = value == 0 and name.endswith("_sub")
            assert lying(lambda footer, at=at, value=value: with_number(footer, at, value)) or harmless
    assert lying(lambda footer: msgspec.structs.replace(footer, **{name: b""}))
    assert lying(lambda footer: msgspec.structs.replace(footer, **{name: getattr(footer, name) + b"1"}))


def test_no_chunks_at_all(lying: Lying) -> None:
    nothing = dict.fromkeys(CHUNK_COLUMNS, b"")
    assert lying(lambda footer: msgspec.structs.replace(footer, rows=0, **nothing), rows=0)


@pytest.mark.parametrize(
    "place",
    [Section(0, 0, 0), Section(-1, 5, 0), Section(2**63, 1, 1), Section(0, 2**63, 1), Section(100, -1, 0), Section(400, 192, 1)],
)
@pytest.mark.parametrize("part", ["index", "filter"])
def test_parts_that_are_not_there(lying: Lying, part: str, place: Section) -> None:
    assert lying(lambda footer: msgspec.structs.replace(footer, **{part: place}))


@pytest.mark.parametrize("beyond", [1, 7, 64, 10_000])
@pytest.mark.parametrize(("part", "shape"), [("index", "time"), ("filter", "value"), ("filter", "hashed")])
def test_parts_that_reach_beyond_the_run_are_refused_when_it_is_opened(part: str, shape: str, beyond: int) -> None:
    """Before a byte of them is asked for."""
    store = store_of(shape)
    run = honest(store, shape, filtered=True)
    footer, body = forge.footer_of(run), len(bytes(run.data)) - run.ref.footer_length
    place = getattr(footer, part)
    moved = msgspec.structs.replace(place, offset=body - place.length + beyond)
    forge.commit_runs(store, forge.with_footer(run, msgspec.structs.replace(footer, **{part: moved})))
    fresh = forge.reopen(store.history.blobs)
    with pytest.raises(Corrupt) as caught:
        fresh.open_runs.sources(fresh.head, "t")
    assert caught.value.expected.startswith(f"parts within {body} bytes")
    assert caught.value.found == str(moved)


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc0", b"\xff" * 100, deep(100_000), b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"],
)
def test_a_footer_of_noise(lying: Lying, data: bytes) -> None:
    assert lying(lambda _: data)


def test_a_footer_whose_lists_claim_billions(lying: Lying) -> None:
    """A length inside it is not a reason to reserve memory."""

    def claim(footer: Footer) -> bytes:
        fields = msgspec.to_builtins(footer, builtin_types=(bytes,))
        fields["groups"] = msgspec.Raw(b"\xdd\xff\xff\xff\xff")
        return msgspec.msgpack.encode(fields)

    assert lying(claim)


def forged_rows(shape: str, change: Callable[[dict[str, pa.Array]], None]) -> tuple[Store, BuiltRun]:
    """A run of one chunk whose physical columns were changed, and nothing else."""
    store = store_of(shape)
    run = honest(store, shape, chunk_bytes=1 << 20)
    physical = forge.physical_of(run)
    named = {name: physical.column(name).combine_chunks() for name in physical.column_names}
    change(named)
    return store, forge.with_chunk(run, forge.message_of(pa.table(named)))


def with_value(array: pa.Array, at: int, value: Any) -> pa.Array:
    return pa.array([value if n == at else old for n, old in enumerate(array.to_pylist())], array.type)


def hostile_rows() -> Iterator[Any]:
    def replaced(name: str, at: int, value: Any) -> Callable[[dict[str, pa.Array]], None]:
        return lambda named: named.update({name: with_value(named[name], at, value)}) if name in named else None

    for value in (4, 255, None):
        yield pytest.param(replaced("_op", 3, value), id=f"op-{value}")
    yield pytest.param(replaced("_hash", 3, None), id="hash-null")
    yield pytest.param(replaced("_hash", 3, 0), id="hash-out-of-order")
    yield pytest.param(replaced("_hash", 0, 2**64 - 1), id="first-hash-out-of-order")
    yield pytest.param(
        lambda named: named.update({name: array.take(pa.array(range(ROWS)[::-1])) for name, array in named.items()}),
        id="reversed",
    )


@pytest.mark.parametrize("change", [*hostile_rows()])
def test_rows_that_cannot_be(shape: str, change: Callable[[dict[str, pa.Array]], None]) -> None:
    store, run = forged_rows(shape, change)
    forge.commit_runs(store, run)
    assert refused(store)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS + 1, 2 * ROWS])
def test_a_chunk_of_more_or_fewer_rows_than_claimed(shape: str, rows: int) -> None:
    store, run = forged_rows(
        shape,
        lambda named: named.update(
            {name: array.take(pa.array([n % ROWS for n in range(rows)])) for name, array in named.items()}
        ),
    )
    forge.commit_runs(store, run)
    with pytest.raises(Corrupt) as caught:
        store.snapshot().table("t").to_arrow()
    name = next(info.name for info in store.history.blobs.list("runs/"))
    assert (caught.value.file, caught.value.expected, caught.value.found) == (
        name,
        f"{ROWS} rows in chunk 0 (run at {run.ref.offset})",
        str(rows),
    )


@pytest.mark.parametrize("shape", ["ordered", "hashed", "time"])
def test_sub_keys_that_cannot_be(shape: str) -> None:
    for value in (None, 2**64 - 1):
        store, run = forged_rows(shape, lambda named, value=value: named.update({"_sub": with_value(named["_sub"], 2, value)}))
        forge.commit_runs(store, run)
        assert refused(store)


def test_rows_that_are_not_unique_though_said_to_be() -> None:
    store, run = forged_rows(
        "value", lambda named: named.update({"_hash": with_value(named["_hash"], 1, named["_hash"][0].as_py())})
    )
    forge.commit_runs(store, run)
    assert refused(store)


@pytest.mark.parametrize(
    ("damage", "by_reading"),
    [
        (lambda index: index[::-1], True),
        (lambda index: np.where(index < ROWS, 99, index), True),
        (lambda index: np.where(index < ROWS, 0, index), True),
        (lambda index: np.concatenate([[0], index[: ROWS - 1], [0], index[ROWS:-1]]).astype("<u8"), False),
        (lambda index: np.concatenate([index[:ROWS], np.roll(index[ROWS:], 1)]), True),
        (lambda index: np.concatenate([index[:ROWS][::-1], index[ROWS:][::-1]]), True),
    ],
)
def test_an_index_that_leads_astray(damage: Callable[[np.ndarray], np.ndarray], by_reading: bool) -> None:
    """A run that lacks a row is detected only by verifying."""
    store = store_of("time")
    run = honest(store, "time", chunk_bytes=1 << 20)
    forge.commit_runs(store, forge.with_part(run, "index", lambda data: damage(np.frombuffer(data, "<u8")).tobytes()))
    (found,) = forge.reopen(store.history.blobs).verify().damages
    assert found.file == next(info.name for info in store.history.blobs.list("runs/"))
    assert found.expected.startswith("an index ")
    table = forge.reopen(store.history.blobs).snapshot().table("t")
    if by_reading:
        with pytest.raises(Corrupt):
            table.multi_get(pa.table({"user": [f"u{n}" for n in range(5)]}))


def test_a_filter_that_knows_nothing() -> None:
    store = store_of("value")
    run = honest(store, "value", filtered=True)
    forge.commit_runs(store, forge.with_part(run, "filter", lambda data: bytes(len(data))))
    assert not forge.reopen(store.history.blobs).verify().good
