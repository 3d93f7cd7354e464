"""Requirements of a commit on the manifest it applies to. Checked again whenever another writer commits first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from floodplain.errors import Conflict, Fenced
from floodplain.versions.records.edit import GroupRanges, RunRef
from floodplain.versions.records.groups import intersect, subtract
from floodplain.versions.records.manifest import Manifest


class Requirement(Protocol):
    def check(self, manifest: Manifest) -> None:
        """Raises ``Conflict``, or ``Fenced`` if the writer has no business left here."""


@dataclass(frozen=True, slots=True)
class RequireLease:
    """This token's lease is the newest and was not released. Whether it ended by the clock does not matter."""

    token: int

    def check(self, manifest: Manifest) -> None:
        lease = manifest.lease
        if lease.token != self.token:
            raise Fenced(
                f"lease {self.token} was superseded by lease {lease.token} of {lease.owner!r}: "
                "stop this writer, or take a new lease and start from the newest epoch"
            )
        if not lease.expires_ms:
            raise Fenced(f"lease {self.token} of {lease.owner!r} was released: take a new lease to write again")


@dataclass(frozen=True, slots=True)
class RequireEpoch:
    """The last committed epoch is exactly this one."""

    epoch: int

    def check(self, manifest: Manifest) -> None:
        if manifest.epoch != self.epoch:
            raise Conflict(f"the last epoch is {manifest.epoch}, not {self.epoch}: read it and build this epoch on it")


@dataclass(frozen=True, slots=True)
class RequireRuns:
    """Each of these runs is still there and still counts for its key groups."""

    table: str
    groups: Mapping[str, GroupRanges]
    """By the id of the run."""

    @classmethod
    def of(cls, runs: Iterable[RunRef], groups: GroupRanges) -> tuple["RequireRuns", ...]:
        """Each run still counts for what it holds of ``groups`` now: what a compaction of several slots' runs needs."""
        held: dict[str, dict[str, GroupRanges]] = {}
        for run in runs:
            held.setdefault(run.table, {})[run.id] = intersect(run.groups, groups)
        return tuple(cls(table, groups_of) for table, groups_of in held.items())

    def check(self, manifest: Manifest) -> None:
        present = {run.id: run.groups for run in manifest.runs.get(self.table, ())}
        for run_id, groups in self.groups.items():
            if run_id not in present:
                raise Conflict(f"run {run_id} of table {self.table} was replaced meanwhile: plan anew on the newest manifest")
            if missing := subtract(groups, present[run_id]):
                raise Conflict(
                    f"run {run_id} of table {self.table} no longer counts for key groups {missing}: "
                    "plan anew on the newest manifest"
                )


@dataclass(frozen=True, slots=True)
class RequireStart:
    """The garbage horizon is below the position where this writer started, so none of its files can be deleted yet."""

    position: int

    def check(self, manifest: Manifest) -> None:
        if manifest.horizon >= self.position:
            raise Conflict(
                f"the garbage horizon {manifest.horizon} passed position {self.position}, where this writer started: "
                "its files may be gone; start over from the newest manifest"
            )


@dataclass(frozen=True, slots=True)
class RequireSchema:
    """The table's newest schema is this version; 0 for a table that does not exist."""

    table: str
    id: int

    def check(self, manifest: Manifest) -> None:
        schema = manifest.schema(self.table)
        version = schema.id if schema else 0
        if version != self.id:
            raise Conflict(f"table {self.table} is at schema {version}, not {self.id}: read the new definition and try again")


@dataclass(frozen=True, slots=True)
class RequireRetained:
    epoch: int

    def check(self, manifest: Manifest) -> None:
        if manifest.mark(self.epoch) is None:
            raise Conflict(f"epoch {self.epoch} is no longer retained: choose a newer one")


@dataclass(frozen=True, slots=True)
class RequireNoRestore:
    """The state did not go back to an epoch after this position, so what had ended or had nothing below it then still has."""

    position: int

    def check(self, manifest: Manifest) -> None:
        if manifest.restored > self.position:
            raise Conflict("the state went back to an earlier epoch meanwhile: plan anew on the newest manifest")


@dataclass(frozen=True, slots=True)
class RequireAssignment:
    """The assignment is this version; 0 for none."""

    version: int

    def check(self, manifest: Manifest) -> None:
        version = manifest.assignment.version if manifest.assignment else 0
        if version != self.version:
            raise Conflict(f"the assignment is version {version}, not {self.version}: plan anew on the newest one")


@dataclass(frozen=True, slots=True)
class RequireOperators:
    """The state still has these operators."""

    names: tuple[str, ...]

    def check(self, manifest: Manifest) -> None:
        gone = [name for name in self.names if name not in manifest.definitions]
        if gone:
            raise Conflict(f"the state has no operator {gone[0]!r} any more: see floodplain inspect for those that it has")
