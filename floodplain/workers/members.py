"""The places of workers, as their coordinator keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass

from floodplain.workers.channel import Channel
from floodplain.workers.messages import Peer, Register

WAITING_S = 30.0
"""A worker that has not come after so long is a warning."""
MOST_LAUNCHES = 4
"""How often in a row a worker is launched that ends before it has registered."""


@dataclass
class Member:
    """A worker's place, whoever has it."""

    job: int = 0
    attempt: int = -1
    channel: Channel | None = None
    peer: Peer | None = None
    pid: int = 0
    heard_s: float = 0.0
    launched_s: float = 0.0
    sent: int = 0
    """The last command that was sent to it."""
    failed_launches: int = 0
    failure: str = ""
    """Why the last launch ended that had not registered."""

    def welcome(self, channel: Channel, by: Register, now_s: float) -> None:
        """A process takes this place."""
        self.attempt, self.pid, self.peer, self.channel = by.attempt, by.pid, by.peer, channel
        self.heard_s, self.sent, self.failed_launches = now_s, 0, 0

    def relaunched(self, job: int, now_s: float) -> None:
        self.job, self.attempt, self.launched_s = job, -1, now_s


def missing(members: Sequence[Member], now_s: float) -> str | None:
    """That workers have waited for a core for long, of which Spark says nothing, or cannot be launched. None if all is well."""
    absent = [member for member in members if member.channel is None]
    failed = [member for member in absent if member.failed_launches >= MOST_LAUNCHES]
    waited = [now_s - member.launched_s for member in absent if now_s - member.launched_s > WAITING_S and member not in failed]
    concerns = []
    if waited:
        meanwhile = "the others run their slots" if len(waited) < len(members) else "no epoch runs"
        concerns.append(
            f"{len(waited)} of {len(members)} workers have waited up to {max(waited):.0f} s for a core of Spark: {meanwhile} "
            "meanwhile. Give Spark more cores, or start with fewer workers"
        )
    if failed:
        concerns.append(
            f"{len(failed)} of {len(members)} workers cannot be started, and the others run their slots: "
            f"{failed[0].failure or 'they end before they have registered'}"
        )
    return ". ".join(concerns) or None
