"""Carries out the commands of a try: reads input into pieces, runs slots of operators."""

import threading
from collections.abc import Iterable

import msgspec
import pyarrow as pa

from floodplain.clock import Randomness
from floodplain.errors import Unavailable
from floodplain.operators.kernel.operator import KeyedOperator
from floodplain.runtime.pieces import Piece, PieceKey, Segment
from floodplain.runtime.staging import Split, Staged
from floodplain.runtime.task import Job, Reader, TaskReport, run_task
from floodplain.runtime.task_store import Work
from floodplain.sources.event_times import EventTimes
from floodplain.sources.parquet import read
from floodplain.store.write.task_writer import Ticket
from floodplain.versions.records.assignment import groups_of
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import BrokenHistory, Manifest
from floodplain.versions.records.manifest_delta import ManifestDelta, updated
from floodplain.workers.kit import WorkerKit
from floodplain.workers.messages import Begin, Done, Made, Read, Run
from floodplain.workers.partitioning import Partitioner, by_slot
from floodplain.workers.piece_reader import PieceReader
from floodplain.workers.pieces import PieceStore, RowStream


class CommandRunner:
    """The commands of one worker. ``run`` is for one thread, all else for any."""

    def __init__(self, kit: WorkerKit, worker: int, pieces: PieceStore, randomness: Randomness) -> None:
        self._kit, self._worker, self._pieces = kit, worker, pieces
        self._reader = PieceReader(pieces, worker, kit.credentials, randomness, kit.reach)
        self._lock = threading.Lock()
        self._begun: Begin | None = None
        self._manifest: Manifest | None = None
        self._slots: dict[str, tuple[GroupRanges, ...]] = {}
        """Operator → the key groups of its slots, in the try that has begun."""

    def begin(self, begin: Begin) -> None:
        """Raises ``Unavailable`` if what it says of the manifest is not what this worker needs to know."""
        with self._lock:
            self._manifest = _advanced(self._manifest, begin)
            self._begun, self._slots = begin, {}
            self._pieces.begin(begin.nonce, begin.budget_bytes)

    def abandon(self, nonce: str) -> None:
        with self._lock:
            if self._begun is not None and self._begun.nonce == nonce:
                self._begun = None
            self._pieces.drop(nonce)
        self._reader.interrupt(nonce)

    def abandon_all(self) -> None:
        with self._lock:
            begun, self._begun = self._begun, None
        self._pieces.close()
        if begun is not None:
            self._reader.interrupt(begun.nonce)

    def close(self) -> None:
        self._reader.close()

    def run(self, command: Read | Run) -> Made | Done:
        with self._lock:
            begin, manifest = self._begun, self._manifest
        if begin is None or begin.nonce != command.nonce:
            raise Unavailable(f"worker {self._worker} does not work at that try")
        if isinstance(command, Read):
            return self._read(begin, command)
        assert manifest is not None, "it came with the try"
        return Done(command.id, msgspec.msgpack.encode(self._report(begin, manifest, command)))

    def _read(self, begin: Begin, order: Read) -> Made:
        schema = pa.ipc.read_schema(pa.py_buffer(order.rows))
        partitioner = Partitioner(order.keys, self._slots_of(begin, order.operator), _key_groups(begin))
        combiner = self._kit.operator(order.operator).traits.combiner if order.combine else None
        pieces, count, times = list[Piece](), 0, EventTimes()
        for number, file_range in zip(order.partitions, order.ranges, strict=True):
            self._kit.reach("read")
            reader = read(order.scan, file_range)
            key, segments = PieceKey(order.operator, number, "read"), list[Segment]()
            for rows in reader:
                made = partitioner.hashed(rows if combiner is None else combiner(rows)).select(schema.names).cast(schema)
                for slot, own in partitioner.split(made):
                    segments.append(self._pieces.add(order.nonce, key, slot, RowStream.of(own)))
            pieces.append(Piece(key, self._worker, tuple(segments)))
            count, times = count + reader.rows, times.merged(reader.event_times)
        return Made(order.id, tuple(pieces), count, times)

    def _report(self, begin: Begin, manifest: Manifest, order: Run) -> TaskReport:
        operator = self._kit.operator(order.operator, order.fixed)
        job = self._job(begin, manifest, order, operator)
        keep = _Keeper(self._pieces, order, self._worker)
        self._kit.reach("process")
        return run_task(job, order.slot, order.part, self._rows(order), keep=keep)

    def _job(self, begin: Begin, manifest: Manifest, order: Run, operator: KeyedOperator) -> Job:
        kit = self._kit
        schema = pa.ipc.read_schema(pa.py_buffer(order.rows))
        return Job(
            work=Work(kit.location, kit.settings, kit.options, begin.ticket),
            manifest=manifest,
            operator=operator,
            times=begin.times,
            slots=self._slots_of(begin, order.operator),
            rows=order.rows,
            outputs=order.outputs,
            task_values={order.slot: order.task_values},
            broadcast=order.broadcast,
            staged=Staged(order.files, schema, order.where) if order.files else None,
            checks={output: kit.checks_of(order.operator, output) for output in order.checks},
            kept=order.kept,
            readers={output: Reader(by, self._slots_of(begin, by)) for output, by in order.readers.items()},
        )

    def _slots_of(self, begin: Begin, operator: str) -> tuple[GroupRanges, ...]:
        if operator not in self._slots:
            self._slots[operator] = groups_of(begin.assignments[operator], _key_groups(begin))
        return self._slots[operator]

    def _rows(self, order: Run) -> Iterable[pa.RecordBatch]:
        if not order.pieces:
            return ()
        peers = {peer.worker: peer for peer in order.peers}
        batches = self._reader.rows(order.nonce, order.pieces, peers, order.slot)
        if not order.where:
            return batches
        conditions = Staged((), pa.schema([]), order.where)
        return (conditions.kept(batch) for batch in batches)


def _advanced(held: Manifest | None, begin: Begin) -> Manifest:
    """The manifest of a try. ``held``: that of the try before."""
    manifest = msgspec.msgpack.decode(begin.manifest, type=Manifest) if begin.manifest else held
    try:
        if manifest is not None and begin.delta:
            manifest = updated(manifest, msgspec.msgpack.decode(begin.delta, type=ManifestDelta))
    except BrokenHistory as broken:
        raise Unavailable(f"a worker was sent {broken.args[1]}, and needs {broken.args[0]}") from broken
    if manifest is None or manifest.chain != begin.chain:
        raise Unavailable(f"a worker does not have the manifest with chain {begin.chain}, and was not sent it")
    return manifest


def _key_groups(begin: Begin) -> int:
    return msgspec.msgpack.decode(begin.ticket, type=Ticket).key_groups


class _Keeper:
    """Keeps an output for the slots of the operator that reads it next."""

    def __init__(self, pieces: PieceStore, order: Run, worker: int) -> None:
        self._pieces, self._order, self._worker = pieces, order, worker

    def __call__(self, output: str, rows: pa.Table, split: Split) -> Piece:
        order = self._order
        key = PieceKey(f"{order.operator}.{output}", order.slot, order.part)
        segments = tuple(
            self._pieces.add(order.nonce, key, slot, RowStream.of(part))
            for slot, part in by_slot(rows, split.of(rows), split.slots)
        )
        return Piece(key, self._worker, segments)
