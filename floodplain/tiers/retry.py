"""Retries requests to a tier after transient faults."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from floodplain.clock import Clock, Randomness
from floodplain.errors import Unavailable
from floodplain.metrics import Counters
from floodplain.settings import RetrySettings
from floodplain.tiers.blobs import BlobInfo, Blobs, Data, Range, Writable
from floodplain.tiers.meter import Meter

Answer = TypeVar("Answer")


def delay_s(retry: RetrySettings, tries: int, randomness: Randomness) -> float:
    """How long to wait after ``tries`` failed tries: anything up to a bound that doubles (full jitter)."""
    bound_ms = min(retry.max_delay_ms, retry.first_delay_ms * 2 ** (tries - 1))
    return randomness.uniform() * bound_ms / 1000


class Retrying(Blobs):
    """Asks ``lower`` again while it is ``Unavailable``, as often as ``retry`` allows.

    Not for ``create``: a second try may meet the first one's success, which only the caller's bytes can tell from
    another's; ``create.create_or_read`` does that.
    """

    def __init__(self, lower: Blobs, retry: RetrySettings, *, clock: Clock, randomness: Randomness, counters: Counters) -> None:
        self.tier = lower.tier
        self.url = lower.url
        self._lower = lower
        self._retry = retry
        self._clock = clock
        self._randomness = randomness
        self._meter = Meter(counters, lower.tier)

    def create(self, name: str, data: Writable) -> None:
        self._lower.create(name, data)

    def put(self, name: str, data: Data) -> None:
        self._ask(lambda: self._lower.put(name, data))

    def get(self, name: str) -> pa.Buffer:
        return self._ask(lambda: self._lower.get(name))

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        return self._ask(lambda: self._lower.get_ranges(name, ranges))

    def at_hand(self, name: str, ranges: Sequence[Range]) -> list[bool]:
        return self._lower.at_hand(name, ranges)

    def map(self, name: str) -> pa.Buffer | None:
        return self._ask(lambda: self._lower.map(name))

    def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
        """Goes on behind the last name seen; names seen restore the number of tries left."""
        tries = 0
        while True:
            try:
                for info in self._lower.list(prefix, after):
                    after, tries = info.name, 0
                    yield info
                return
            except Unavailable as error:
                tries += 1
                self._wait(tries, error)

    def top(self) -> Iterable[str]:
        return self._ask(lambda: [*self._lower.top()])

    def delete(self, names: Iterable[str]) -> None:
        held = [*names]
        self._ask(lambda: self._lower.delete(held))

    def size(self, name: str) -> int:
        return self._ask(lambda: self._lower.size(name))

    def modified_ms(self, name: str) -> int | None:
        return self._ask(lambda: self._lower.modified_ms(name))

    def forget(self, names: Iterable[str]) -> None:
        self._lower.forget(names)

    def reserve(self, size_bytes: int) -> None:
        self._lower.reserve(size_bytes)

    def give_up_reserve(self) -> int:
        return self._lower.give_up_reserve()

    def sweep(self, clock: Clock, older_than_ms: int) -> int:
        return self._ask(lambda: self._lower.sweep(clock, older_than_ms))

    def close(self) -> None:
        self._lower.close()

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        tries = 0
        while True:
            try:
                return call()
            except Unavailable as error:
                tries += 1
                self._wait(tries, error)

    def _wait(self, tries: int, error: Unavailable) -> None:
        if tries >= self._retry.attempts:
            raise error
        self._meter.retried()
        pause_s = delay_s(self._retry, tries, self._randomness)
        self._meter.waited(pause_s)
        self._clock.sleep_s(pause_s)
