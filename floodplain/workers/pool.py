"""Runs the operators of an epoch on workers: slots are placed, orders given, reports gathered. An epoch is tried, not patched."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import msgspec

from floodplain.clock import Clock, Randomness
from floodplain.errors import BadInput, FloodplainError, Unavailable
from floodplain.runtime.binder import BoundPlan
from floodplain.runtime.engine import TryFailed
from floodplain.runtime.pieces import Piece, by_slot
from floodplain.runtime.staging import Staged
from floodplain.runtime.task import Job, TaskReport
from floodplain.runtime.task_errors import FINAL
from floodplain.sources.parquet import FileRange
from floodplain.sources.scan import ParquetScan
from floodplain.store.store import Store
from floodplain.store.write.task_writer import Ticket
from floodplain.versions.records.assignment import groups_of
from floodplain.versions.records.edit import Assignment, GroupRanges, RunRef
from floodplain.versions.records.groups import union
from floodplain.versions.records.manifest import Manifest
from floodplain.versions.records.manifest_delta import delta, for_tasks
from floodplain.versions.records.user_names import operator_of
from floodplain.workers.answers import Command, WorkerLost, failure_of
from floodplain.workers.channel import Credentials
from floodplain.workers.coordinator import SILENT_S, Coordinator
from floodplain.workers.kit import ALONE_S, Dumps, WorkerKit
from floodplain.workers.launcher import Launcher
from floodplain.workers.messages import Begin, Done, Made, Peer, Prefetch, Read, Run
from floodplain.workers.placement import Placements, all_placed, moved, of_owners, shared_out
from floodplain.workers.pushing import BridgeOrder

CANCEL_S = 5.0
"""How long a worker may go on with a try that was given up, before it is given up itself."""
WAIT_S = 120.0
"""How long an epoch waits for the first worker."""
RENEW_S = 30.0
"""How long an update waits for workers with the new operators."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The manifest as a worker is sent it: whole, as a delta, or not at all if it has it."""

    chain: str
    whole: bytes = b""
    delta: bytes = b""


@dataclass(frozen=True)
class Wiring:
    """How the processes of one query reach each other, and how its operators travel."""

    credentials: Credentials
    bind: tuple[str, int]
    """Where the coordinator listens; port 0 is any that is free."""
    reached_at: Callable[[int], tuple[str, int]]
    """The coordinator's port → where workers reach it."""
    dumps: Dumps
    load: Callable[[bytes], Any]
    silent_s: float = SILENT_S
    """A worker that is silent for longer is lost."""

    @property
    def alone_s(self) -> float:
        """A worker that hears nothing of the driver for longer ends: code that stops one side may stop the other."""
        return max(ALONE_S, 2 * self.silent_s)


class WorkerPool:
    """The workers of one query, as its engine uses them, from their launch to their end. For one thread, where nothing else is
    said."""

    def __init__(self, coordinator: Coordinator, launcher: Launcher, wiring: Wiring, budget_bytes: int) -> None:
        """``budget_bytes``: what each worker may keep in memory of the rows between workers."""
        self.coordinator = self._coordinator = coordinator
        self._launcher, self._wiring, self._budget_bytes = launcher, wiring, budget_bytes
        self._closed = False
        self._nonce = ""
        self._assignments: dict[str, Assignment] = {}
        """Operator → its slots in this try."""
        self._peers: dict[int, Peer] = {}
        self._placements: dict[str, dict[int, int]] = {}
        self._committed: tuple[Mapping[str, Assignment], Placements] = {}, {}
        """The assignments and placements of the last epoch that was committed."""
        self._held: tuple[Manifest | None, Mapping[int, Peer]] = None, {}
        """The manifest that workers were sent last, and the processes that have it."""
        self.moved_slots = 0
        """In this epoch: slots that another worker has than before, of operators with the same assignment."""

    @classmethod
    def launch(
        cls,
        bound: BoundPlan,
        wiring: Wiring,
        workers: int,
        launcher: Callable[[WorkerKit, Coordinator], Launcher],
        clock: Clock,
        randomness: Randomness,
    ) -> "WorkerPool":
        """Have so many workers launched for the operators of a plan. Waits for none."""
        coordinator = Coordinator(wiring.credentials, wiring.bind, clock, randomness, wiring.silent_s)
        try:
            address = wiring.reached_at(coordinator.port)
            kit = WorkerKit.of(bound, address, wiring.credentials, wiring.dumps, wiring.load, wiring.alone_s)
            pool = cls(coordinator, launcher(kit, coordinator), wiring, bound.place.settings.epoch_bytes)
        except BaseException:
            coordinator.close()
            raise
        coordinator.launch(pool._launcher, workers)
        return pool

    def successor(self, bound: BoundPlan) -> Callable[[], None]:
        """What has workers launched again with the operators of another plan: code comes to them in no other way."""
        kit = self._launcher.kit.with_plan(bound, self._wiring.dumps)

        def switch() -> None:
            self._launcher.kit = kit
            self._coordinator.renew(RENEW_S)

        return switch

    def close(self) -> None:
        """End the workers. May be called again."""
        if not self._closed:
            self._closed = True
            self._coordinator.close()
            self._launcher.close()
            self._coordinator.disconnect()

    @property
    def pids(self) -> dict[int, int]:
        """Of registered workers, the process. For any thread."""
        return {} if self._closed else self._coordinator.pids

    @property
    def peers(self) -> Mapping[int, Peer]:
        """The workers of this try."""
        return self._peers

    @property
    def placements(self) -> Placements:
        """Operator → slot → worker."""
        return self._placements

    def begin(self, job: Job, assignments: Mapping[str, Assignment]) -> None:
        """The workers know of the try that this job belongs to, and slots have their workers.

        ``assignments``: of all operators. Raises ``TryFailed``.
        """
        ticket = msgspec.msgpack.decode(job.work.ticket, type=Ticket)
        nonce = f"{ticket.token}-{ticket.epoch}-{ticket.attempt}"
        if nonce == self._nonce:
            return
        try:
            if not self._coordinator.await_one(WAIT_S):
                raise TryFailed(Unavailable(f"no worker has come for {WAIT_S:g} s: see the executors in Spark's UI"))
        except Unavailable as error:
            raise TryFailed(error) from error
        self._peers = self._coordinator.present()
        self._place(assignments)
        self._nonce = nonce
        self._ask([(worker, self._begin(nonce, job, sent)) for worker, sent in self._manifests(job).items()])

    def _begin(self, nonce: str, job: Job, sent: "_Sent") -> Begin:
        return Begin(
            id=self._coordinator.next_id(),
            nonce=nonce,
            ticket=job.work.ticket,
            manifest=sent.whole,
            times=job.times,
            budget_bytes=self._budget_bytes,
            assignments=self._assignments,
            delta=sent.delta,
            chain=sent.chain,
        )

    def _manifests(self, job: Job) -> dict[int, "_Sent"]:
        """What each worker is sent of the manifest: all of it if its process is new, else what changed since the last try."""
        assert isinstance(job.manifest, Manifest), "only the engine of workers sends it on"
        manifest, (before, holders) = for_tasks(job.manifest), self._held
        known = {worker for worker, peer in self._peers.items() if before is not None and holders.get(worker) == peer}
        changed = _Sent(manifest.chain)
        if before is not None and known and before.chain != manifest.chain:
            changed = _Sent(manifest.chain, delta=msgspec.msgpack.encode(delta(before, manifest)))
        whole = changed
        if len(known) < len(self._peers):
            whole = _Sent(manifest.chain, whole=msgspec.msgpack.encode(manifest))
        self._held = manifest, dict(self._peers)
        return {worker: changed if worker in known else whole for worker in self._peers}

    def _place(self, assignments: Mapping[str, Assignment]) -> None:
        before, placements = self._committed
        self._assignments = dict(assignments)
        self._placements = all_placed(assignments, list(self._peers), placements)
        same = [name for name, now in assignments.items() if name in before and before[name].version == now.version]
        self.moved_slots = sum(moved(placements[name], self._placements[name]) for name in same)

    def read(self, job: Job, keys: Sequence[str], scan: ParquetScan, ranges: Sequence[FileRange], *, combine: bool) -> list[Made]:
        """Have the workers read the input, about the same number of bytes each. Requires: ``begin`` was called."""
        answers = self._ask(
            (
                worker,
                Read(
                    id=self._coordinator.next_id(),
                    nonce=self._nonce,
                    operator=job.operator.name,
                    scan=scan,
                    ranges=tuple(ranges[number] for number in numbers),
                    partitions=tuple(numbers),
                    rows=job.rows,
                    keys=tuple(keys),
                    combine=combine,
                ),
            )
            for worker, numbers in shared_out([each.end - each.start for each in ranges], list(self._peers)).items()
        )
        return [answer for answer in answers if isinstance(answer, Made)]

    def bridge(self, job: Job, keys: Sequence[str]) -> BridgeOrder:
        """What tasks need to push rows of this try to the workers. Requires: ``begin`` was called."""
        placement = self._placements[job.operator.name]
        return BridgeOrder(
            nonce=self._nonce,
            exchange=job.operator.name,
            keys=tuple(keys),
            slots=job.slots,
            key_groups=msgspec.msgpack.decode(job.work.ticket, type=Ticket).key_groups,
            owners=tuple(self._peers[placement[slot]] for slot in range(len(job.slots))),
            credentials=self._wiring.credentials,
            rows=job.rows,
        )

    def run(self, job: Job, pieces: Sequence[Piece], staged: Staged | None = None) -> list[TaskReport]:
        """One report per slot. Requires: ``begin`` was called. Raises ``TryFailed``, or at once an error that no retry mends.

        ``pieces``: where the rows are. ``staged``: where they are instead, and what conditions they have to meet.
        """
        of_slot, placement = by_slot(pieces), self._placements[job.operator.name]
        answers = self._ask(
            (placement[slot], self._order(job, slot, of_slot.get(slot, ()), staged)) for slot in range(len(job.slots))
        )
        return [msgspec.msgpack.decode(answer.report, type=TaskReport) for answer in answers if isinstance(answer, Done)]

    def _order(self, job: Job, slot: int, pieces: Sequence[Piece], staged: Staged | None) -> Run:
        return Run(
            id=self._coordinator.next_id(),
            nonce=self._nonce,
            operator=job.operator.name,
            slot=slot,
            part=f"{slot}-{self._placements[job.operator.name][slot]}",
            rows=job.rows,
            outputs=dict(job.outputs),
            readers={output: reader.operator for output, reader in job.readers.items()},
            kept=job.kept,
            task_values=job.task_values.get(slot, b""),
            broadcast=job.broadcast,
            fixed=job.operator.traits.fixed,
            checks=tuple(job.checks),
            pieces=tuple(pieces),
            peers=tuple(self._peers[worker] for worker in sorted({piece.worker for piece in pieces})),
            files=() if staged is None else staged.files,
            where=() if staged is None else staged.where,
        )

    def _ask(self, commands: Iterable[tuple[int, Command]]) -> list[object]:
        requested = list(commands)
        try:
            answers = self._coordinator.ask(requested)
        except WorkerLost as error:
            self.abandon()
            raise TryFailed(error.while_asked(requested)) from error
        except BadInput:
            self.abandon()
            raise
        failure = failure_of(answers)
        if isinstance(failure, FINAL):
            self.abandon(wait=False)
            raise failure
        if failure is not None:
            self.abandon()
            raise TryFailed(failure)
        return [answers[number] for number in sorted(answers)]

    def abandon(self, *, wait: bool = True) -> None:
        """Give the try up. A worker that does not let go of it is given up, too: a thread cannot be stopped, a process can.

        ``wait``: another try may follow.
        """
        nonce, self._nonce = self._nonce, ""
        self._held = None, {}  # whoever did not get it as it should have gets all of it
        self._coordinator.abandon(nonce)
        if wait and (left := self._coordinator.await_idle(CANCEL_S)):
            self._coordinator.lose(left, "it did not let go of a try that was given up")

    def end_epoch(self) -> None:
        """The epoch is committed: what workers keep of it is dropped."""
        if self._nonce:
            self._coordinator.abandon(self._nonce)
            self._nonce = ""
            self._committed = self._assignments, self._placements

    def prefetch(self, runs: Sequence[RunRef], store: Store) -> bool:
        """Have the workers fetch what they will need of these runs, which are about to be committed. Whether all have answered.
        For another thread than the one that runs epochs."""
        head, settings = store.head, store.history.settings
        present, named = self._coordinator.present(), tuple(runs)
        operators = {operator_of(run.table) for run in runs}
        owners = {worker: groups for worker, groups in self._owners(operators, head.key_groups).items() if worker in present}
        rate = settings.compaction.bytes_per_s
        return self._coordinator.prefetch(
            lambda number: {
                worker: Prefetch(number, head.store, named, groups, head.key_groups, rate) for worker, groups in owners.items()
            }
        )

    def _owners(self, operators: AbstractSet[str], key_groups: int) -> dict[int, GroupRanges]:
        """Worker → the key groups of its slots of these operators in the last epoch that was committed."""
        assignments, placements = self._committed
        owned = [of_owners(groups_of(assignments[name], key_groups), placements[name]) for name in operators & assignments.keys()]
        workers = {worker for each in owned for worker in each}
        return {worker: union(span for each in owned for span in each.get(worker, ())) for worker in workers}

    def failed(self, error: FloodplainError) -> TryFailed:
        """Gives the try up, because of an error outside the workers."""
        self.abandon()
        return TryFailed(error)
