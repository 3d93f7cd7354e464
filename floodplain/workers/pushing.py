"""Pushes the rows of one partition to the workers that own their slots, from a process that owns none."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from floodplain.clock import Randomness
from floodplain.errors import Unavailable
from floodplain.runtime.pieces import Piece, PieceKey
from floodplain.versions.records.edit import GroupRanges
from floodplain.workers.channel import Channel, Credentials, Disconnected, connect
from floodplain.workers.messages import Kept, Peer, Push, Pushed
from floodplain.workers.partitioning import Partitioner
from floodplain.workers.pieces import RowStream

PUSHED_ROWS = 1 << 16
"""Rows that a task gathers before it splits and sends them."""


@dataclass(frozen=True)
class BridgeOrder:
    """What the tasks of one bridge job need."""

    nonce: str
    exchange: str
    keys: tuple[str, ...]
    slots: tuple[GroupRanges, ...]
    key_groups: int
    owners: tuple[Peer, ...]
    """By slot."""
    credentials: Credentials = field(repr=False)
    rows: bytes
    """The Arrow schema of the rows."""


class Pusher:
    """Sends the rows of one partition."""

    def __init__(self, order: BridgeOrder, key: PieceKey, randomness: Randomness) -> None:
        self._order, self._key, self._randomness = order, key, randomness
        self._channels: dict[int, Channel] = {}

    def push(self, batches: Iterable[pa.RecordBatch]) -> list[Piece]:
        order, schema = self._order, pa.ipc.read_schema(pa.py_buffer(self._order.rows))
        split = Partitioner(order.keys, order.slots, order.key_groups).split
        try:
            for rows in in_tables(batches, PUSHED_ROWS):
                for slot, own in split(rows.cast(schema)):
                    stream = RowStream.of(own)
                    message = Push(order.nonce, self._key, slot, stream.rows, stream.checksum)
                    self._channel(order.owners[slot]).send(message, [stream.data])
            return [Piece(self._key, worker, self._kept(channel)) for worker, channel in sorted(self._channels.items())]
        except Disconnected as error:
            raise Unavailable(f"a worker that owns slots of {order.exchange} does not take rows: {error}") from error
        finally:
            for channel in self._channels.values():
                channel.close()

    def _kept(self, channel: Channel) -> Any:
        channel.send(Pushed(self._order.nonce, self._key))
        answer, _ = channel.receive()
        if not isinstance(answer, Kept) or answer.refused:
            raise Unavailable(
                f"a worker that owns slots of {self._order.exchange} refuses rows: {getattr(answer, 'refused', '')}"
            )
        return answer.segments

    def _channel(self, owner: Peer) -> Channel:
        if owner.worker not in self._channels:
            self._channels[owner.worker] = self._connected(owner)
        return self._channels[owner.worker]

    def _connected(self, owner: Peer) -> Channel:
        """On one host by its Unix socket, which copies less than TCP."""
        if owner.local:
            with suppress(Disconnected):
                return connect(owner.local, self._order.credentials, self._randomness)
        return connect((owner.host, owner.port), self._order.credentials, self._randomness)


def in_tables(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Concatenates batches into tables of at least ``rows`` rows each; the last may have fewer. None is empty."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held += [batch] if len(batch) else []
        if sum(map(len, held)) >= rows:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
