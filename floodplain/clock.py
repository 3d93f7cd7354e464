"""Clock and randomness, injected so that tests can replay a run."""

import random
import secrets
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for waits."""

    def now_ms(self) -> int: ...
    def monotonic_s(self) -> float: ...
    def sleep_s(self, seconds: float) -> None: ...


class Randomness(Protocol):
    """Jitter, and names that must not repeat."""

    def uniform(self) -> float: ...
    def nonce(self) -> str: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock for tests: it advances only by ``advance_ms`` and by sleeps, which return at once."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_s = 0.0
        self._lock = threading.Lock()
        self.sleeps_s: list[float] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def sleep_s(self, seconds: float) -> None:
        self.sleeps_s.append(seconds)
        self.advance_ms(int(seconds * 1000))

    def advance_ms(self, by_ms: int) -> None:
        with self._lock:
            self._now_ms += by_ms
            self._elapsed_s += by_ms / 1000


class SystemRandomness:
    def uniform(self) -> float:
        return random.random()

    def nonce(self) -> str:
        return secrets.token_hex(8)


class SeededRandomness:
    """The same sequence for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uniform(self) -> float:
        return self._random.random()

    def nonce(self) -> str:
        return f"{self._random.getrandbits(64):016x}"
