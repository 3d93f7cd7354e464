"""Output as Parquet files in a directory or an object store: staged files are published under their final names.

The Parquet and the Delta sink use it.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import BadInput
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.sinks.base import Sink, ahead_of_state
from floodplain.sinks.partitions import PATH_BYTES, FolderNames, check_partitions, partition_columns, partitions
from floodplain.sinks.row_checks import RowCheck
from floodplain.sinks.staged import check_staged, encoding, open_staged, staged_path
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.fan_out import fan_out
from floodplain.tiers.files.errors import as_ours
from floodplain.tiers.files.folders import Folders
from floodplain.tiers.open import folder_of, open_blobs
from floodplain.tiers.redact import without_credentials

_TEMP = re.compile(r"\.epoch-\d+-\d+-(.*)\.parquet\.tmp\Z")
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
MOST_EPOCH = (1 << 63) - 1
_CONCURRENT = 16
"""Files that are published side by side."""
_DELTA_ONLY = ("aws_s3_locking_provider", "aws_s3_allow_unsafe_rename", "delta_dynamo", "aws_conditional_put", "conditional_put")


class Files(Protocol):
    """A directory or bucket of immutable files, each written atomically."""

    def place(self, name: str, staged: str, blobs: Blobs) -> int:
        """Publish the staged file under ``name``, atomically, replacing an equal one; returns its size.

        Raises ``Corrupt``, and publishes nothing, if the file differs from what the edit recorded of it.
        """

    def place_all(self, files: Sequence[tuple[str, str]], blobs: Blobs) -> list[int]:
        """As ``place``, for pairs of a name and a staged file; side by side where each is a request."""

    def sync(self) -> None:
        """All placed files are durable on return."""

    def names(self) -> Iterator[str]: ...

    def tidy(self, app: str) -> None:
        """Remove temporary files that a crashed driver of this ``app`` left."""


class LocalFiles:
    """A directory. Staged files on the same file system are hard-linked, not copied.

    A temporary file has a name that starts with a dot, which readers of directories ignore.
    """

    def __init__(self, root: Path, *, deep: bool = False) -> None:
        """``deep``: there are files in folders below it, too."""
        self.root = root
        self._deep = deep
        self._folders = Folders(root, sync=True)
        self._mode: int | None = None
        self._changed: set[Path] = set()
        """Folders to sync."""

    def place(self, name: str, staged: str, blobs: Blobs) -> int:
        def fill(temp: Path) -> None:
            if not self._linked(staged_path(staged, blobs), temp):
                _write(temp, blobs.get(staged))
            else:
                # The file may have been replaced since it was verified.
                check_staged(staged, blobs, temp)

        return self._placed(name, fill)

    def place_all(self, files: Sequence[tuple[str, str]], blobs: Blobs) -> list[int]:
        return [self.place(name, staged, blobs) for name, staged in files]

    def write(self, name: str, data: pa.Buffer) -> int:
        """As ``place``, with this content."""
        return self._placed(name, lambda temp: _write(temp, data))

    def _placed(self, name: str, fill: Callable[[Path], None]) -> int:
        target = self.root / name
        temp = target.with_name(f".{target.name}.tmp")
        with as_ours(f"publishing {target}"):
            self._folders.make(target.parent)
            self._changed.add(target.parent)
            temp.unlink(missing_ok=True)
            try:
                fill(temp)
                temp.replace(target)
            finally:
                # A rename between two hard links of one file does nothing, so after a replay the temporary link still exists.
                temp.unlink(missing_ok=True)
            return target.stat().st_size

    def _linked(self, source: Path | None, temp: Path) -> bool:
        """Whether the file could be hard-linked. One with other permissions than new files in this directory must be copied: the
        permissions of the state are not those of the output."""
        if source is None or stat.S_IMODE(source.stat().st_mode) != self._new_mode(temp):
            return False
        try:
            os.link(source, temp, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    def _new_mode(self, temp: Path) -> int:
        if self._mode is None:
            with temp.open("xb") as file:
                self._mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            temp.unlink()
        return self._mode

    def sync(self) -> None:
        with as_ours(f"publishing in {self.root}"):
            for folder in sorted(self._changed):
                self._folders.sync(folder)
        self._changed.clear()

    def sync_below(self, folder: str, names: Iterable[str]) -> None:
        """Files that another library wrote, without syncing them, are durable on return."""
        with as_ours(f"publishing in {self.root / folder}"):
            for name in names:
                # A file that is gone was merged into a later one by that library.
                with suppress(FileNotFoundError), (self.root / folder / name).open("rb") as file:
                    os.fsync(file.fileno())
            self._folders.sync(self.root / folder)

    def names(self) -> Iterator[str]:
        if self.root.is_dir():
            yield from sorted(os.fspath(path.relative_to(self.root)) for path in self.root.glob("**/*" if self._deep else "*"))

    def tidy(self, app: str) -> None:
        for name in self.names():
            match = _TEMP.match(name.rpartition("/")[2])
            if match and match[1] == app:
                (self.root / name).unlink(missing_ok=True)


class RemoteFiles:
    """An object store. Puts are atomic and leave no temporary files."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._target = open_blobs(
            url, StoreSettings(), options=options, clock=SystemClock(), randomness=SystemRandomness(), counters=Counters()
        )

    def place(self, name: str, staged: str, blobs: Blobs) -> int:
        data = blobs.get(staged)
        self._target.put(name, data)
        return int(data.size)

    def place_all(self, files: Sequence[tuple[str, str]], blobs: Blobs) -> list[int]:
        return fan_out(self._target, lambda file: self.place(*file, blobs), files, _CONCURRENT)

    def sync(self) -> None:
        return

    def names(self) -> Iterator[str]:
        for info in self._target.list(paths.PUBLISHED):
            yield info.name

    def tidy(self, app: str) -> None:  # noqa: ARG002
        return


def open_files(path: str | os.PathLike[str], storage_options: Mapping[str, str] | None) -> Files:
    text = os.fspath(path)
    folder = folder_of(text)
    if folder is not None:
        return LocalFiles(folder)
    return RemoteFiles(text, _obstore_options(storage_options or {}))


def _obstore_options(options: Mapping[str, str]) -> dict[str, str]:
    """Storage options of Delta under the names of obstore."""
    kept = {key.lower(): str(value) for key, value in options.items() if not key.lower().startswith(_DELTA_ONLY)}
    return {("allow_http" if key.endswith("_allow_http") else key): value for key, value in kept.items()}


def _write(path: Path, data: pa.Buffer) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class ParquetSink(Sink):
    """Parquet files in a directory or object store, named by epoch, number and state: publishing an epoch again writes the same
    files.

    Each file appears atomically and once. The files of one epoch appear one after the other; for atomic epochs use a Delta table.

    With ``partition_by``, the file of a task is split into one for each combination of values, with the same name in a folder of
    its own. The driver reads and writes the rows for that; without ``partition_by`` it does not.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        if not os.fspath(path):
            raise BadInput('write("parquet") needs a path: write("parquet", path="out")')
        self._path = without_credentials(os.fspath(path))
        self._by = partition_columns(partition_by)
        self._files = open_files(path, storage_options)
        if self._by:
            if not isinstance(self._files, LocalFiles):
                raise BadInput(
                    "partition_by is supported in local directories only: write to one, or to an object store without it"
                )
            self._files = LocalFiles(self._files.root, deep=True)
        self._app = ""

    @property
    def target(self) -> str:
        return self._path

    def check(self, schema: pa.Schema) -> None:
        check_partitions(self._by, schema)

    def row_check(self, schema: pa.Schema) -> RowCheck | None:  # noqa: ARG002
        if not self._by:
            return None
        assert isinstance(self._files, LocalFiles)
        file = f"/.{paths.published(MOST_EPOCH, MOST_EPOCH, self._app)}.tmp"
        return FolderNames(self._by, PATH_BYTES - len(os.fsencode(self._files.root)) - len(file))

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self.check(schema)
        self._app = app
        self._files.tidy(app)
        newest = max((paths.epoch_published(name.rpartition("/")[2], app) for name in self._files.names()), default=0)
        if newest > committed:
            raise ahead_of_state(self._path, newest, committed)

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        files = [(paths.published(epoch, number, self._app), name) for number, name in enumerate(sorted(staged))]
        if not self._by:
            self._files.place_all(files, blobs)
        for published, name in files if self._by else ():
            self._write_partitions(published, open_staged(name, blobs).read().cast(schema))
        if staged:
            self._files.sync()

    def _write_partitions(self, name: str, rows: pa.Table) -> None:
        assert isinstance(self._files, LocalFiles)
        for folder, of_partition in partitions(rows, self._by):
            data = pa.BufferOutputStream()
            pq.write_table(of_partition, data, **encoding(of_partition))
            self._files.write(f"{folder}/{name}", data.getvalue())
