"""One or two operators in a row over files, and the check that nothing is lost, repeated or of two minds."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.settings import RetentionSettings, StoreSettings, Workers
from floodplain.spark.runtime import Query, stream
from floodplain.store.read.snapshot import Snapshot
from floodplain.store.store import Store
from tests.spark.fault_processes import BUCKETS, Fault, First, Second
from tests.spark.files import put_table

FILES_PER_EPOCH = 2
USERS = 40
SETTINGS = StoreSettings(key_groups=64, lease_ms=1500, retention=RetentionSettings(newest=200))


def write_input(folder: Path, epochs: int) -> None:
    """Files for this many more epochs."""
    source = folder / "in"
    first = len(list(source.glob("*.parquet")))
    for number in range(first, first + epochs * FILES_PER_EPOCH):
        rng = np.random.default_rng(number)
        rows = pa.table({"user": [f"u{n}" for n in rng.integers(0, USERS, 60)], "amount": rng.integers(0, 100, 60)})
        put_table(source, number, rows)


def start(
    spark: Any,
    folder: Path,
    faults: list[Fault],
    *,
    operators: int = 2,
    transform: bool = False,
    slots: int = 2,
    inline_bytes: int = 0,
    force: bool = False,
    forever: bool = False,
    engine: str = "tasks",
) -> Query:
    """Process what is there. By default each task stores its runs itself. With workers there are as many as slots."""
    settings = StoreSettings(
        key_groups=SETTINGS.key_groups, lease_ms=SETTINGS.lease_ms, retention=SETTINGS.retention, inline_bytes=inline_bytes
    )
    state = str(folder / "state")
    rows = (
        spark.readStream.schema("user string, amount long")
        .option("maxFilesPerTrigger", FILES_PER_EPOCH)
        .parquet(str(folder / "in"))
    )
    first = stream(rows).key_by("user").process(First(state, [fault for fault in faults if fault.operator == "first"]))
    output = first.write("parquet", path=str(folder / "first"))
    if operators == 2:
        between = first.transform(lambda df: df.where("n > 0")) if transform else first
        second = between.key_by("bucket").process(Second(state, [fault for fault in faults if fault.operator == "second"]))
        output = output.also(second.write("parquet", path=str(folder / "second"), name="second"))
    trigger = {"processingTime": "0 seconds"} if forever else {"availableNow": True}
    of_engine = Workers(count=slots) if engine == "workers" else engine
    return output.start(state=state, slots=slots, trigger=trigger, settings=settings, force=force, engine=of_engine)


def check(folder: Path, epochs: int, operators: int = 2) -> None:
    """In every epoch, state, output and what each operator saw of the other are of the same attempts, and what they should be."""
    store = Store.open(folder / "state")
    head = store.head
    assert (head.epoch, head.published) == (epochs, epochs)
    assert {mark.epoch for mark in head.epochs} == set(range(1, epochs + 1))
    files = sorted((folder / "in").glob("*.parquet"))
    assert len(files) == epochs * FILES_PER_EPOCH, "an epoch for all input"
    seen_rows: Counter[int] = Counter()
    for epoch in range(1, epochs + 1):
        now = pa.concat_tables(map(pq.read_table, files[(epoch - 1) * FILES_PER_EPOCH : epoch * FILES_PER_EPOCH]))
        users = set(now["user"].to_pylist())
        snapshot = store.at(epoch=epoch)
        so_far = pa.concat_tables(map(pq.read_table, files[: epoch * FILES_PER_EPOCH]))
        nonces = _check_first(snapshot, so_far, published(folder / "first", epoch), users)
        if operators == 2:
            seen_rows.update(int(user[1:]) % BUCKETS for user in users)
            _check_second(snapshot, nonces, seen_rows, published(folder / "second", epoch), users)
    assert _epochs_published(folder / "first") | _epochs_published(folder / "second") <= set(range(1, epochs + 1))


def _check_first(snapshot: Snapshot, rows: pa.Table, output: list[dict[str, Any]], users: set[str]) -> dict[str, str]:
    """Returns the nonce of each user in the state."""
    grouped = rows.group_by("user").aggregate([("amount", "count"), ("amount", "sum")]).to_pylist()
    oracle = {row["user"]: (row["amount_count"], row["amount_sum"]) for row in grouped}
    state = {row["user"]: row for row in snapshot.table("first").to_arrow().to_pylist()}
    assert {user: (row["n"], row["total"]) for user, row in state.items()} == oracle
    assert sorted(row["user"] for row in output) == sorted(users), "each user once, and none that had no rows"
    for row in output:
        held = state[row["user"]]
        assert (row["n"], row["total"], row["nonce"]) == (held["n"], held["total"], held["nonce"])
    return {user: row["nonce"] for user, row in state.items()}


def _check_second(
    snapshot: Snapshot, nonces: dict[str, str], rows: Counter[int], output: list[dict[str, Any]], users: set[str]
) -> None:
    buckets = {row["bucket"]: row for row in snapshot.table("second").to_arrow().to_pylist()}
    assert {bucket: row["rows"] for bucket, row in buckets.items()} == dict(rows)
    seen = snapshot.table("second__seen").to_arrow().to_pylist()
    assert {row["key"]: row["value"] for row in seen} == nonces, "what the second saw is what the first kept"
    assert sorted(row["user"] for row in output) == sorted(users)
    for row in output:
        assert row["upstream"] == nonces[row["user"]]
        assert row["nonce"] == buckets[row["bucket"]]["nonce"]


def published(folder: Path, epoch: int) -> list[dict[str, Any]]:
    rows = [row for file in sorted(folder.glob(f"epoch-{epoch:012d}-*.parquet")) for row in pq.read_table(file).to_pylist()]
    assert {row["epoch"] for row in rows} <= {epoch}
    return rows


def _epochs_published(folder: Path) -> set[int]:
    return {int(file.name.split("-")[1]) for file in folder.glob("*.parquet")}
