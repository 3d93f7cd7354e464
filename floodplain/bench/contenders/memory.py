"""Memory of a lookup, measured in a process of its own: ``python -m floodplain.bench.contenders.memory STORE TABLE ROWS KEYS``.

Anonymous memory only (``RssAnon``): pages of mapped runs belong to the page cache, which all processes share and the kernel
reclaims when it needs memory. Linux only.
"""

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import pyarrow as pa

from floodplain.bench.workloads.state_updates import users
from floodplain.store.store import Store

_STATUS = Path("/proc/self/status")
_SAMPLE_S = 0.001


class LookupMemory(msgspec.Struct, frozen=True):
    idle_mb: float
    """Memory of the process after its imports, before it opened the store."""
    peak_mb: float
    """The peak above ``idle_mb`` while the keys were looked up, sampled every millisecond."""
    keys_found: int


def measurable() -> bool:
    return _STATUS.exists()


def lookup_memory(store: Path, table: str, rows: int, keys: int) -> LookupMemory:
    """Look ``keys`` random users of ``rows`` up in a fresh process."""
    command = [sys.executable, "-m", "floodplain.bench.contenders.memory", str(store), table, str(rows), str(keys)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=LookupMemory)


def anonymous_mb() -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"{_STATUS} has no RssAnon")


class Peak:
    """The largest ``anonymous_mb`` between entering and leaving."""

    def __init__(self) -> None:
        self.mb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            self.mb = max(self.mb, anonymous_mb())

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self.mb = max(self.mb, anonymous_mb())


def _main(path: str, table: str, rows: int, keys: int) -> None:
    lookup_keys = pa.table({"user": users(np.random.default_rng(7).choice(rows, keys, replace=False))})
    idle = anonymous_mb()
    with Peak() as peak:
        lookup = Store.open(path).snapshot().table(table).multi_get(lookup_keys)
    print(msgspec.json.encode(LookupMemory(round(idle, 1), round(peak.mb - idle, 1), int(lookup.found.sum()))).decode())


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
