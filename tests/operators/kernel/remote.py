"""Kits on a store whose answers take as long as a test wants."""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.testing.process_kit import ProcessKit
from floodplain.tiers.blobs import Range
from floodplain.tiers.paths import RUNS
from tests.store.world import ObjectLike

LONGEST_S = 20
"""What never happens has not happened by then."""


class Remote(ObjectLike):
    """Objects in memory that are read as far ones are. ``answer`` is called before each read of ranges of a run."""

    answers_at_once = False

    def __init__(self) -> None:
        super().__init__("memory://remote", Counters())
        self.asked: list[tuple[str, list[Range]]] = []
        self.answer: Callable[[str], None] = lambda name: None
        self._most = threading.Lock()
        self.under_way = self.most_under_way = 0

    def get_ranges(self, name: str, ranges: Sequence[Range]) -> list[pa.Buffer]:
        if not name.startswith(RUNS):
            return super().get_ranges(name, ranges)
        with self._most:
            self.asked.append((name, list(ranges)))
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            self.answer(name)
            return super().get_ranges(name, ranges)
        finally:
            with self._most:
                self.under_way -= 1


def wait(event: threading.Event) -> None:
    if not event.wait(LONGEST_S):
        raise AssertionError("what this waits for does not happen")


def remote_kit(process: Any, blobs: Remote, settings: StoreSettings, **arguments: Any) -> ProcessKit:
    with patch("floodplain.store.store.open_blobs", lambda *_, **__: blobs):
        return ProcessKit(process, settings=settings, **arguments)
