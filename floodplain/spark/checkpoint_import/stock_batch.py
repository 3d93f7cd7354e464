"""The last batch of a stock checkpoint: its input position, its times, and what its sources have noted up to it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from floodplain.errors import BadInput, short
from floodplain.runtime.checkpoint.files import LOGS, SOURCES, File, entry_of, malformed, next_watermark_of, planned, write
from floodplain.runtime.checkpoint.spark_checkpoint import BatchEntry, batch_entry, next_watermark
from floodplain.versions.records.edit import SourcePosition

_METADATA = "metadata"
_VOID = "-"
"""An entry of the offset log for a source that has shown nothing yet."""
_NAMED_SOURCES = "v2"
"""The version of entries of the offset log that have offsets by the names of sources."""


@dataclass(frozen=True)
class StockBatch:
    """A committed batch of Spark's own query."""

    number: int
    entry: BatchEntry
    next_watermark_ms: int
    """The watermark that the batch after it runs by; 0 for none."""
    begun: bool
    """Whether a batch after it had been planned."""


class CheckpointFiles:
    """The files of a checkpoint, wherever Spark can read them. Hadoop verifies its checksums."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        session: Any = spark._jsparkSession
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._root = jvm.org.apache.hadoop.fs.Path(location)
        with self._named(""):
            self._files = self._root.getFileSystem(session.sessionState().newHadoopConf())

    def names(self, folder: str) -> list[str]:
        """Of what is in a folder; nothing if there is no such folder."""
        path = self._path(folder)
        with self._named(folder):
            return [status.getPath().getName() for status in self._files.listStatus(path)] if self._files.exists(path) else []

    def text(self, name: str) -> str:
        with self._named(name):
            opened = self._files.open(self._path(name))
            try:
                data: bytes = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(opened))
            finally:
                opened.close()
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadInput(f"{self.location}/{name}: expected text, found other bytes. Nothing was imported") from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            why = short(error.java_exception.toString(), 300)
            raise BadInput(f"{self.location}/{name} cannot be read: {why}. Nothing was imported") from error


def committed_batch(files: CheckpointFiles, wanted: int | None, folder: Path) -> StockBatch:
    """The last committed batch, or the ``wanted`` one. ``folder``: where a copy of what belongs to it is made.

    Raises ``BadInput`` if there is none, or if what sources have read up to it cannot be told any more.
    """
    begun, done = (sorted(int(name) for name in files.names(log) if name.isdigit()) for log in LOGS)
    if not done:
        advice = "run the job on Spark until it has committed one" if begun else "check that a query has this checkpointLocation"
        raise BadInput(f"{files.location} has no committed batch, so there is nothing to import: {advice}")
    number = done[-1] if wanted is None else wanted
    if number not in done or number not in begun:
        there = ", ".join(str(each) for each in done if each in begun)
        raise BadInput(f"{files.location} has no committed batch {number}; it has: {there or 'none'}")
    for name in (_METADATA, f"offsets/{number}", f"commits/{number}"):
        write(folder / name, files.text(name))
    _check_form(files, folder / "commits" / str(number))
    offsets = _offsets(files, folder, number)
    for source in files.names(SOURCES.rstrip("/")):
        line = offsets[int(source)] if source.isdigit() and int(source) < len(offsets) else None
        _copy_source(files, f"{SOURCES}{source}", line, number, folder)
    entry = batch_entry(folder, number, SourcePosition())
    return StockBatch(number, entry, next_watermark(folder, number), begun[-1] > number)


def _check_form(files: CheckpointFiles, commit: Path) -> None:
    wrong = malformed(File(commit.read_bytes(), vouched=True), next_watermark_of)
    if wrong is not None:
        raise BadInput(f"{files.location}/commits/{commit.name}: {wrong}. Nothing was imported")


def _offsets(files: CheckpointFiles, folder: Path, number: int) -> tuple[str, ...]:
    name = f"offsets/{number}"
    file = File((folder / name).read_bytes(), vouched=True)
    if (wrong := malformed(file, planned)) is not None:
        raise BadInput(f"{files.location}/{name}: {wrong}. Nothing was imported")
    plan = planned(file.text)
    if plan.version == _NAMED_SOURCES:
        raise BadInput(
            f"{files.location}/{name} has its offsets by the names of sources (spark.sql.streaming.queryEvolution."
            "enableSourceEvolution), which cannot be taken over: start the ported job at a new location, with initialState"
        )
    return plan.offsets


def _copy_source(files: CheckpointFiles, source: str, offset: str | None, batch: int, folder: Path) -> None:
    """What a source has noted up to the batch. What it listed for one that was not committed stays away: it is listed again."""
    numbered = {name: entry for name in files.names(source) if (entry := entry_of(name)) is not None}
    last = _last_entry(offset)
    if offset == _VOID and any(_lists_files(files.text(f"{source}/{name}")) for name in numbered):
        last = -1
    kept = {name: entry for name, entry in numbered.items() if last is None or entry[0] <= last}
    if last is not None and not _is_whole(list(kept.values()), last):
        raise BadInput(
            f"{files.location}/{source} no longer has which files were read up to batch {batch} alone. Nothing was imported: run "
            "the job on Spark until it has committed another batch, stop it, and import that"
        )
    for name in kept:
        write(folder / source / name, files.text(f"{source}/{name}"))


def _last_entry(offset: str | None) -> int | None:
    """The last entry that counts of a source that lists files; None for any other source."""
    if offset is None or not offset.startswith("{"):
        return None
    number = json.loads(offset).get("logOffset")
    return number if isinstance(number, int) else None


def _lists_files(text: str) -> bool:
    return any(line.startswith('{"path":') for line in text.splitlines()[1:2])


def _is_whole(entries: Sequence[tuple[int, bool]], last: int) -> bool:
    since = max((number for number, compact in entries if compact), default=-1)
    return set(range(since + 1, last + 1)) <= {number for number, compact in entries if not compact}
