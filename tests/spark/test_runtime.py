"""Pipelines on a real Spark: results, restarts, checkpoints that are lost or foreign, two operators, rescaling."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.errors import BadInput, LeaseHeld
from floodplain.settings import StoreSettings
from floodplain.spark.runtime import Query, stream
from floodplain.store.store import Store
from floodplain.versions.records import sealing
from tests.processes import ByCount, Count

pytestmark = pytest.mark.spark
FAST = StoreSettings(lease_ms=1500)
ONCE = {"availableNow": True}


def write_inputs(folder: Path, files: int, first: int = 0) -> pa.Table:
    """Files of rows in ``in/``; returns all that are there."""
    (folder / "in").mkdir(exist_ok=True)
    for number in range(first, first + files):
        rng = np.random.default_rng(number)
        rows = pa.table({"user": [f"u{n}" for n in rng.integers(0, 40, 300)], "amount": rng.integers(0, 100, 300)})
        pq.write_table(rows, folder / "in" / f"{number:04d}.parquet")
    return pq.read_table(folder / "in")


def expected(rows: pa.Table) -> dict[str, tuple[int, int]]:
    grouped = rows.group_by("user").aggregate([("amount", "count"), ("amount", "sum")])
    return {row["user"]: (row["amount_count"], row["amount_sum"]) for row in grouped.to_pylist()}


def source(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))


def run(spark: Any, folder: Path, slots: int = 2, **options: Any) -> Query:
    """Process what is available and let go of the state."""
    query = (
        stream(source(spark, folder))
        .key_by("user")
        .process(Count())
        .write("parquet", path=str(folder / "out"))
        .start(state=folder / "state", slots=slots, trigger=ONCE, settings=FAST, **options)
    )
    query.await_termination()
    if query.exception is not None:
        raise query.exception
    query.stop()
    return query


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    rows = Store.open(folder / "state").snapshot().table("count").to_arrow().to_pylist()
    return {row["user"]: (row["n"], row["total"]) for row in rows}


def last_output(folder: Path) -> dict[str, tuple[int, int]]:
    """By user, the newest row published; each epoch gives one row per user it saw."""
    found: dict[str, tuple[int, int]] = {}
    for file in sorted((folder / "out").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            assert row["n"] > found.get(row["user"], (0, 0))[0], "a row was published twice or out of order"
            found[row["user"]] = (row["n"], row["total"])
    return found


def test_results_equal_a_batch_computation_and_go_on_after_a_restart_with_other_slots(spark, tmp_path):
    run_one = write_inputs(tmp_path, 3)
    run(spark, tmp_path, slots=2)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(run_one)
    run_two = write_inputs(tmp_path, 2, first=3)
    query = run(spark, tmp_path, slots=3)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(run_two)
    assert [progress.slots for progress in query.progress] == [3, 3]


def test_a_lost_checkpoint_is_rebuilt_from_the_state(spark, tmp_path):
    write_inputs(tmp_path, 2)
    run(spark, tmp_path)
    shutil.rmtree(tmp_path / "state" / "checkpoint")
    rows = write_inputs(tmp_path, 1, first=2)
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)


COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"


def test_files_that_spark_has_put_together_are_in_objects_and_come_back(spark, tmp_path, monkeypatch, request):
    """No edit has the text of a file that replaces others; what is rebuilt is what Spark had written."""
    monkeypatch.setattr(sealing, "KEPT_BYTES", 300)
    monkeypatch.setattr(sealing, "FAN_IN", 2)
    request.addfinalizer(lambda: spark.conf.unset(COMPACT_INTERVAL))
    spark.conf.set(COMPACT_INTERVAL, "2")
    write_inputs(tmp_path, 5)
    run(spark, tmp_path)
    source_log, head = tmp_path / "state" / "checkpoint" / "sources" / "0", Store.open(tmp_path / "state").head
    written = {path.name: path.read_text() for path in source_log.glob("[0-9]*")}
    assert "3.compact" in written and "4" in written
    assert head.source.seen and not any("compact" in name for name in head.source.sources)
    assert [*head.source.compacts] == ["sources/0/3.compact"]
    shutil.rmtree(tmp_path / "state" / "checkpoint")
    rows = write_inputs(tmp_path, 3, first=5)
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)
    rebuilt = {path.name: path.read_text() for path in source_log.glob("[0-9]*")}
    assert {name: rebuilt[name] for name in ("3.compact", "4")} == {name: written[name] for name in ("3.compact", "4")}
    assert "7.compact" in rebuilt and Store.open(tmp_path / "state").verify().good


def test_a_foreign_checkpoint_is_refused(spark, tmp_path):
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        write_inputs(tmp_path / name, 1)
        run(spark, tmp_path / name)
    shutil.rmtree(tmp_path / "mine" / "state" / "checkpoint")
    shutil.copytree(tmp_path / "other" / "state" / "checkpoint", tmp_path / "mine" / "state" / "checkpoint")
    with pytest.raises(BadInput, match="delete the checkpoint to rebuild it"):
        run(spark, tmp_path / "mine")


def test_a_checkpoint_ahead_of_the_state_is_refused_and_rebuilt_once_it_is_deleted(spark, tmp_path):
    """The state is put back from a backup, the checkpoint is not: Spark would go on behind batches that are not in the state."""
    state, backup = tmp_path / "state", tmp_path / "backup"
    write_inputs(tmp_path, 2)
    run(spark, tmp_path)
    shutil.copytree(state, backup, ignore=shutil.ignore_patterns("checkpoint"))
    write_inputs(tmp_path, 2, first=2)
    run(spark, tmp_path)
    shutil.move(state / "checkpoint", tmp_path / "checkpoint")
    shutil.rmtree(state)
    shutil.move(backup, state)
    shutil.move(tmp_path / "checkpoint", state / "checkpoint")
    shutil.rmtree(tmp_path / "out")
    rows = write_inputs(tmp_path, 1, first=4)
    with pytest.raises(BadInput, match=r"is at batch 3, and the state has all up to 1: .* Delete the checkpoint to rebuild it"):
        run(spark, tmp_path)
    shutil.rmtree(state / "checkpoint")
    run(spark, tmp_path)
    assert state_of(tmp_path) == expected(rows)


def test_after_going_back_the_input_is_read_again_from_there(spark, tmp_path):
    """The checkpoint is ahead of the state, which knows why: it is made anew without a word."""
    write_inputs(tmp_path, 3)
    run(spark, tmp_path)
    store = Store.open(tmp_path / "state")
    told = store.rollback(1)
    store.close()
    assert (told.epoch, told.batch_before, told.batch_after) == (4, 2, 0)
    published = set((tmp_path / "out").glob("*.parquet"))
    rows = write_inputs(tmp_path, 1, first=3)
    query = run(spark, tmp_path)
    assert [progress.batch_id for progress in query.progress] == [1, 2, 3]
    assert [progress.epoch for progress in query.progress] == [5, 6, 7]
    assert state_of(tmp_path) == expected(rows)
    assert published < set((tmp_path / "out").glob("*.parquet")), "what was published stays"
    run(spark, tmp_path)
    assert state_of(tmp_path) == expected(rows), "and nothing is read twice from then on"


def test_what_is_left_of_a_checkpoint_is_not_gone_on_from(spark, tmp_path):
    state = tmp_path / "state"
    write_inputs(tmp_path, 2)
    run(spark, tmp_path)
    (state / "checkpoint" / "metadata").unlink()
    rows = write_inputs(tmp_path, 1, first=2)
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)
    (tmp_path / "new").mkdir()
    shutil.move(state / "checkpoint", tmp_path / "new" / "state" / "checkpoint")
    (tmp_path / "new" / "state" / "checkpoint" / "metadata").unlink()
    shutil.copytree(tmp_path / "in", tmp_path / "new" / "in")
    with pytest.raises(BadInput, match=r"has batches up to 2, and the state has none: .* delete the checkpoint to read"):
        run(spark, tmp_path / "new")
    shutil.rmtree(tmp_path / "new" / "state" / "checkpoint")
    run(spark, tmp_path / "new")
    assert state_of(tmp_path / "new") == expected(rows)


def test_a_checkpoint_is_written_fast_and_a_changed_bit_in_it_is_made_good(spark, tmp_path, caplog):
    write_inputs(tmp_path, 2)
    names = ("spark.sql.streaming.checkpointFileManagerClass", "spark.sql.streaming.checkpoint.fileChecksum.enabled")
    before = [spark.conf.get(name, None) for name in names]
    run(spark, tmp_path)
    assert [spark.conf.get(name, None) for name in names] == before
    log = tmp_path / "state" / "checkpoint" / "offsets"
    last = max((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    assert {path.name for path in log.iterdir()} >= {f".{last.name}.crc"} and not list(log.glob(f"{last.name}?*"))
    last.write_bytes(last.read_bytes().replace(b'"logOffset":1', b'"logOffset":3'))
    write_inputs(tmp_path, 1, first=2)
    run(spark, tmp_path)
    assert "offsets/1: in line 3 expected" in caplog.text
    assert state_of(tmp_path) == last_output(tmp_path) == expected(pq.read_table(tmp_path / "in"))


def test_a_checkpoint_that_was_put_back_in_part_makes_no_row_count_twice(spark, tmp_path, caplog):
    """Without the checksum that Spark would find it by: an older entry in place of the newest, then a list of files cut short."""
    write_inputs(tmp_path, 2)
    run(spark, tmp_path)
    checkpoint = tmp_path / "state" / "checkpoint"
    shutil.copyfile(checkpoint / "offsets" / "0", checkpoint / "offsets" / "1")
    (checkpoint / "offsets" / ".1.crc").unlink()
    rows = write_inputs(tmp_path, 1, first=2)
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)
    assert "offsets/1: in line 2 expected" in caplog.text
    (checkpoint / "sources" / "0" / "2").write_text("v1")
    (checkpoint / "sources" / "0" / ".2.crc").unlink()
    rows = write_inputs(tmp_path, 1, first=3)
    run(spark, tmp_path)
    assert state_of(tmp_path) == last_output(tmp_path) == expected(rows)
    assert "sources/0/2: in line 2 expected" in caplog.text


def test_a_source_writes_to_the_checkpoint_in_the_same_way(spark, tmp_path):
    write_inputs(tmp_path, 1)
    query = run(spark, tmp_path)
    opened = query._query._jsq.streamingQuery().sources().head()
    held = opened.getClass().getDeclaredField("metadataLog")
    held.setAccessible(True)
    assert held.get(opened).fileManager().getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"


def test_what_keeps_a_source_from_being_opened_is_told_by_the_query(spark, tmp_path):
    write_inputs(tmp_path, 1)
    (tmp_path / "state" / "checkpoint").mkdir(parents=True)
    (tmp_path / "state" / "checkpoint" / "sources").write_text("not a folder")
    rows = stream(source(spark, tmp_path)).key_by("user").process(Count()).write("memory")
    query = rows.start(state=tmp_path / "state", trigger=ONCE, settings=FAST)
    with pytest.raises(Exception, match="sources"):
        query.await_termination()
    query.stop()
    (tmp_path / "state" / "checkpoint" / "sources").unlink()
    run(spark, tmp_path)
    assert state_of(tmp_path) == expected(pq.read_table(tmp_path / "in"))


def test_slots_that_are_not_possible_are_refused_before_the_state_is_taken(spark, tmp_path):
    write_inputs(tmp_path, 1)
    few = StoreSettings(lease_ms=1500, key_groups=1)
    counted = stream(source(spark, tmp_path)).key_by("user").process(Count()).write("memory")
    for slots in (0, 2):
        with pytest.raises(BadInput, match=f"{slots} slots are not possible: use 1 to 1"):
            counted.start(state=tmp_path / "state", slots=slots, trigger=ONCE, settings=few)
    assert Store.open(tmp_path / "state").head.lease.token == 0
    query = counted.start(state=tmp_path / "state", trigger=ONCE, settings=few)
    query.await_termination()
    query.stop()
    assert [progress.slots for progress in query.progress] == [1], "no more than there are key groups, by default"
    assert state_of(tmp_path) == expected(pq.read_table(tmp_path / "in"))


def test_a_second_driver_waits_its_turn_or_forces_its_way(spark, tmp_path):
    write_inputs(tmp_path, 1)
    store = Store.open(tmp_path / "state", create=True, settings=StoreSettings(lease_ms=60_000))
    first = store.writer("other_driver")
    rows = source(spark, tmp_path)
    pipeline = stream(rows).key_by("user").process(Count()).write("memory")
    with pytest.raises(LeaseHeld):
        Store.open(tmp_path / "state").writer("second")
    query = pipeline.start(state=tmp_path / "state", trigger=ONCE, settings=FAST, force=True)
    query.await_termination()
    query.stop()
    with pytest.raises(Exception, match="superseded"):
        first.epoch().commit()


def test_two_operators_in_a_row(spark, tmp_path):
    rows = write_inputs(tmp_path, 2)
    query = (
        stream(source(spark, tmp_path))
        .key_by("user")
        .process(Count())
        .transform(lambda df: df.where("n % 2 = 0"))
        .key_by("n")
        .process(ByCount())
        .write("memory")
        .start(state=tmp_path / "state", slots=2, trigger=ONCE, settings=FAST)
    )
    query.await_termination()
    assert query.exception is None
    query.stop()
    newest = {row["n"]: row["users"] for row in query.sink.table().to_pylist()}
    final = {user: n for user, (n, _) in expected(rows).items()}
    for user, n in final.items():
        if n % 2 == 0:
            assert user in newest[n]
    assert all(n % 2 == 0 for n in newest)
    assert not list((tmp_path / "state" / "staged").glob("*")), "staged rows stay no longer than they are needed"
