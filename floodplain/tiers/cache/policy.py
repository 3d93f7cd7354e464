"""Eviction and admission policies of the cache. Policies propose; the ledger executes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached file as a policy sees it."""

    key: str
    charge_bytes: int
    used_ns: int
    """When it was last used, to within a few seconds."""
    frequency: int
    """Its recent access frequency, estimated; 0 where the policy does not count."""


class Policy(Protocol):
    counts: bool
    """Whether frequencies are wanted. Counting costs a few hashes per request."""

    def order(self, entries: Sequence[Entry]) -> list[Entry]:
        """All entries in eviction order."""

    def admits(self, frequency: int, victims: Sequence[Entry]) -> bool:
        """Whether an entry asked for ``frequency`` times is worth ``victims``."""


class Lru:
    """LRU: evicts the least recently used and admits everything. A scan larger than the cache empties it."""

    counts = False

    def order(self, entries: Sequence[Entry]) -> list[Entry]:
        return sorted(entries, key=lambda entry: (entry.used_ns, entry.key))

    def admits(self, frequency: int, victims: Sequence[Entry]) -> bool:  # noqa: ARG002
        return True


class Frequent:
    """TinyLFU: evicts the least frequently used, and only for an entry that is used more often than each of them.

    What is read once cannot push out what is read often; a newcomer to a full cache is let in at its second request.
    """

    counts = True

    def order(self, entries: Sequence[Entry]) -> list[Entry]:
        return sorted(entries, key=lambda entry: (entry.frequency, entry.used_ns, entry.key))

    def admits(self, frequency: int, victims: Sequence[Entry]) -> bool:
        return all(frequency > victim.frequency for victim in victims)


def policy_of(name: Literal["lru", "frequency"]) -> Policy:
    return Frequent() if name == "frequency" else Lru()
