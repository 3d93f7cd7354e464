"""The checkpoint of a query on files, written as Spark writes it: entries of a source's log, compacted every so often."""

import json
from pathlib import Path

from floodplain.runtime.checkpoint.files import remove, write

QUERY = "9c028b8c-e29b-46be-a0fe-68c0b7ab022d"


def line(number: int, batch: int) -> str:
    path = f"file:///data/input/year=2026/month=07/day=04/part-{number:08d}-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.c000.parquet"
    return f'{{"path":"{path}","timestamp":{1_700_000_000_000 + number},"batchId":{batch}}}'


class FileLog:
    """``sources/<source>``, ``offsets``, ``commits`` and ``metadata`` below a folder.

    Every ``interval`` entries one replaces those before it, which are deleted at once if ``clears``.
    """

    def __init__(self, folder: Path, interval: int = 10, *, clears: bool = True, source: int = 0) -> None:
        self.folder, self.interval, self.clears = folder, interval, clears
        self.source = f"sources/{source}"
        self.lines: list[str] = []
        self.batch = -1
        write(folder / "metadata", json.dumps({"id": QUERY}))

    def begin(self, files: int) -> None:
        """The next batch has so many new files."""
        self.batch += 1
        new = [line(len(self.lines) + at, self.batch) for at in range(files)]
        self.lines += new
        compact = (self.batch + 1) % self.interval == 0
        name = f"{self.source}/{self.batch}{'.compact' if compact else ''}"
        write(self.folder / name, "\n".join(["v1", *(self.lines if compact else new)]))
        if compact and self.clears:
            for before in range(self.batch - self.interval, self.batch):
                for replaced in (f"{before}", f"{before}.compact"):
                    remove(self.folder / self.source / replaced)
        times = {"batchWatermarkMs": 0, "batchTimestampMs": 1000 + self.batch}
        write(self.folder / "offsets" / str(self.batch), f"v1\n{json.dumps(times)}\n{json.dumps({'logOffset': self.batch})}")

    def end(self) -> None:
        write(self.folder / "commits" / str(self.batch), 'v1\n{"nextBatchWatermarkMs": 0}')

    def files(self) -> dict[str, str]:
        """The entries that count, by name."""
        return entries_below(self.folder, self.source)


def entries_below(folder: Path, source: str) -> dict[str, str]:
    found = {path.name: path.read_text() for path in (folder / source).iterdir() if not path.name.startswith(".")}
    newest = max((int(name.partition(".")[0]) for name in found if name.endswith(".compact")), default=-1)
    return {name: text for name, text in found.items() if name == f"{newest}.compact" or int(name.partition(".")[0]) > newest}
