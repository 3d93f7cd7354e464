"""Staged files damaged in any part of them, by each way they are used: found, named, and nothing of them gets anywhere."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.clock import SystemRandomness
from floodplain.errors import Corrupt
from floodplain.metrics import Counters
from floodplain.operators.kernel.process import KeyedProcess
from floodplain.sinks import files as sink_files
from floodplain.sinks.memory import MemorySink
from floodplain.testing.faults import CrashPoint
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from tests.sinks.staged_damage import GIVEN, Driver, Named, damages, left_unpublished, worlds
from tests.sinks.staging import local_blobs, memory_blobs

SINKS = ("parquet", "parted", "delta", "memory", "foreach_batch", "kafka")
PLACES = {
    "directory": lambda folder: DirectoryBlobs(folder, sync=False, randomness=SystemRandomness(), counters=Counters()),
    "objects": lambda _: memory_blobs(),
}
Contents = Mapping[str, bytes]


@pytest.fixture(params=PLACES)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return PLACES[request.param](tmp_path / "state")


def cases(whole: Contents, every: int = 1) -> Iterator[tuple[str, Contents]]:
    """What was done to the files of two tasks, and what those are then that were changed. ``every``: only each so many-th, for
    what takes long and differs in how it comes to the files, not in how it checks them."""
    for seed, name in enumerate(whole):
        for what, data in islice(damages(whole[name], seed), seed % every, None, every):
            yield what, {name: data}
    first, second = whole
    yield "swapped", {first: whole[second], second: whole[first]}


def put(blobs: Blobs, contents: Contents) -> None:
    for name, data in contents.items():
        blobs.put(name, data)


def mistakes(use: Callable[[], object], damaged: Collection[str]) -> Iterator[str]:
    """What is wrong with what is said of files that are damaged."""
    try:
        use()
    except Corrupt as damage:
        if damage.file not in damaged or damage.expected == damage.found or damage.last_good_epoch != 0:
            yield str(damage)
    except Exception as error:  # anything else does not name the damage
        yield repr(error)
    else:
        yield "not seen"


def unseen(
    blobs: Blobs, names: Collection[str], use: Callable[[], object], seen: Callable[[], list[Any]], every: int = 1
) -> list[str]:
    """Damages, each undone again, that ``use`` does not name, or that something is published in spite of."""
    whole = {name: blobs.get(name).to_pybytes() for name in names}
    found = []
    for what, changed in cases(whole, every):
        put(blobs, changed)
        found += [f"{what}: {mistake}" for mistake in mistakes(use, changed)]
        found += [f"{what}: published"] if seen() else []
        put(blobs, {name: whole[name] for name in changed})
    return found


@pytest.mark.parametrize("name", SINKS)
def test_a_driver_publishes_no_damaged_output(tmp_path, blobs, name):
    world = worlds(tmp_path)[name]
    driver = left_unpublished(blobs, world.sink)
    assert unseen(blobs, driver.store.head.outputs, driver.epochs.publisher.publish, world.seen) == []
    if name != "foreach_batch":
        driver.epochs.publisher.publish()
        assert world.seen(), "files that are whole again are published"


@pytest.mark.parametrize("name", SINKS)
def test_a_driver_that_takes_over_publishes_no_damaged_output(tmp_path, blobs, name):
    world = worlds(tmp_path)[name]
    outputs = left_unpublished(blobs, world.sink).store.head.outputs
    assert unseen(blobs, outputs, lambda: Driver(blobs, world.sink).prepare(), world.seen, every=13) == []
    if name != "foreach_batch":
        Driver(blobs, world.sink).prepare()
        assert world.seen()


def test_damage_to_the_file_of_one_task_keeps_all_sinks_from_publishing(tmp_path, blobs):
    out = worlds(tmp_path)
    driver = left_unpublished(blobs, *(out[name].sink for name in SINKS))
    last = driver.store.head.outputs[-1]
    blobs.delete([last])
    with pytest.raises(Corrupt, match=rf"{last} is damaged: expected \d+ bytes with checksum [0-9a-f]{{16}}, found no such file"):
        driver.epochs.publisher.publish()
    assert [name for name in SINKS if out[name].seen()] == []


@pytest.mark.parametrize("name", ["parquet", "delta"])
def test_a_file_that_changes_between_its_check_and_its_link_is_not_published(tmp_path, monkeypatch, name):
    blobs, world = local_blobs(tmp_path / "state"), worlds(tmp_path)[name]
    driver = left_unpublished(blobs, world.sink)
    first, second = driver.store.head.outputs
    linked = sink_files.LocalFiles._linked

    def link_the_other(files: sink_files.LocalFiles, source: Path, temp: Path) -> bool:
        return linked(files, source.with_name(second.rpartition("/")[2]) if source.name in first else source, temp)

    monkeypatch.setattr(sink_files.LocalFiles, "_linked", link_the_other)
    with pytest.raises(Corrupt, match=f"{first} is damaged"):
        driver.epochs.publisher.publish()
    assert world.seen() == []


def test_published_files_keep_the_checksums_of_their_pages(tmp_path, blobs):
    out = worlds(tmp_path)
    left_unpublished(blobs, *(out[name].sink for name in ("parquet", "parted", "delta"))).epochs.publisher.publish()
    found = [path for name in ("parquet", "parted", "delta") for path in out[name].seen()]
    assert len(found) == 2 + 2 * 3 + 2
    for path in found:
        data, column = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata.row_group(0).column(0)
        data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1] ^= 1
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            pq.ParquetFile(pa.BufferReader(bytes(data)), page_checksum_verification=True).read()


def test_output_that_nothing_vouches_for_is_published_as_it_is(blobs):
    """Edits of format 1 name files, and no more."""
    sink = MemorySink()
    before = left_unpublished(blobs, sink)
    before.epochs.publisher.publish()
    made, rows = sink.table(), pa.BufferOutputStream()
    pq.write_table(made.slice(0, 3), rows)
    name = paths.staged(0, "1-2-x", "named", "main", "0-1")
    blobs.create(name, rows.getvalue())
    before.epochs.writer.epoch(now_ms=2000).commit(outputs=[name])
    assert before.store.head.outputs == (name,) and before.store.head.sums == ()
    after = MemorySink()
    Driver(blobs, after).prepare()
    assert after.table() == made.slice(0, 3)


class Summed(KeyedProcess):
    output = "kind string, n long"

    def process(self, key, rows, ctx):
        yield key.kind, sum(row.n for row in rows)


NEXT = {
    "split": lambda named: named,
    "split, some of it": lambda named: named.where("n > 100"),
    "as a frame": lambda named: named.transform(lambda frame: frame),
}


@pytest.mark.parametrize("between", NEXT)
def test_no_operator_reads_damaged_rows_of_the_one_before(between):
    """Damaged after the last task of the first operator has staged its rows."""

    def build(stream):
        named = stream.key_by("user").process(Named(), name="named")
        return NEXT[between](named).key_by("kind").process(Summed(), name="summed").write("memory")

    transforms = [lambda table: table] if between == "as a frame" else []
    kit = PipelineKit(build, rows="user string, amount long", transforms=transforms)
    whole: dict[str, bytes] = {}
    epoch = partial(kit.epoch, GIVEN)
    wanted = epoch()
    names = {step: name for step, name in enumerate(kit.steps.taken) if "-named-main-" in name and name.startswith("create ")}

    def again(act: Callable[[Blobs], None]) -> None:
        kit.wipe()
        kit.restart()
        kit.crash_at(CrashPoint(max(names), "after"), lambda: act(kit.store.history.blobs))

    def keep(blobs: Blobs) -> None:
        for step in names.values():
            name = step.removeprefix("create ")
            whole[name] = blobs.get(name).to_pybytes()

    again(keep)
    assert epoch() == wanted and len(whole) == 2
    found = []
    for what, changed in cases(whole, 2 if between == "split" else 9):
        again(partial(put, contents=changed))
        found += [f"{what}: {mistake}" for mistake in mistakes(epoch, changed)]
        found += [f"{what}: used"] if kit.store.head.epoch or kit.sinks["output"].epochs else []
    assert found == []
