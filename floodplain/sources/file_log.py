"""The files of a micro-batch, by what Spark's file source wrote down when it planned the batch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from floodplain.runtime.checkpoint.files import SOURCES, content_lines, planned
from floodplain.sources.parquet import InputFile
from floodplain.sources.partition_columns import PartitionColumn, partition_values
from floodplain.versions.records.edit import SourcePosition

_LOCAL = "file://"
_NO_FILES = -1
_SUMMARIES = ("_metadata", "_common_metadata")
"""Files that Spark's listing lets pass, although they have no rows."""


class LeftToSpark(Exception):
    """Why the files of a batch are left to Spark."""


def files_of_batch(
    position: SourcePosition, before: SourcePosition, base: str, partitions: Sequence[PartitionColumn] = ()
) -> tuple[InputFile, ...] | str:
    """The files of the batch at ``position``, in Spark's order, or why they are left to Spark.

    ``before``: the position of the batch before it. ``base``: the folder that the source reads, or "" if it has a pattern.
    ``partitions``: the columns that are in the names of folders below it.
    Requires: the input has one source, of files.
    """
    try:
        if before.batch_id != position.batch_id - 1:
            return f"the batch before batch {position.batch_id} is not the one of the last epoch"
        first, last = (_log_offset(each) for each in (before, position))
        return tuple(_listed(position, first, last, base, partitions))
    except LeftToSpark as reason:
        return str(reason)


def _log_offset(position: SourcePosition) -> int:
    """Up to which entry of the source's log the batch reads."""
    if position.batch_id < 0:
        return _NO_FILES
    offsets = planned(position.offsets).offsets
    if len(offsets) != 1:
        raise LeftToSpark(f"the input has {len(offsets)} sources")
    if offsets[0] == "-":
        return _NO_FILES
    offset = json.loads(offsets[0])
    if not isinstance(offset, dict) or not isinstance(offset.get("logOffset"), int):
        raise LeftToSpark(f"the source of files has the offset {offsets[0]}")
    return int(offset["logOffset"])


def _listed(
    position: SourcePosition, first: int, last: int, base: str, partitions: Sequence[PartitionColumn]
) -> Iterator[InputFile]:
    """``first``: the entry of the log that the batch before ended with."""
    entries = [entry for entry in _entries(position) if first < entry["batchId"] <= last]
    missing = set(range(first + 1, last + 1)) - {entry["batchId"] for entry in entries}
    if missing:
        raise LeftToSpark(f"Spark's checkpoint does not list the files of the entries {sorted(missing)}")
    for entry in sorted(entries, key=lambda entry: int(entry["batchId"])):
        if (file := _file(entry, base, partitions)).size_bytes:  # Spark skips empty files
            yield file


def _entries(position: SourcePosition) -> Iterator[dict[str, Any]]:
    texts = {name: text for name, text in position.sources.items() if name.startswith(SOURCES)}
    if len({name.rpartition("/")[0] for name in texts}) > 1:
        raise LeftToSpark("the input has several sources")
    yield from map(json.loads, content_lines(texts.values()))


def _file(entry: dict[str, Any], base: str, partitions: Sequence[PartitionColumn]) -> InputFile:
    path = local_path(entry["path"])
    if path is None:
        raise LeftToSpark(f"the file {entry['path']} is not on a local or shared disk")
    inner = path.removeprefix(base.rstrip("/") + "/") if base else path
    folders = Path(inner).parts[:-1]
    if not partitions and any("=" in folder for folder in folders):
        raise LeftToSpark(f"the file {path} may have columns in the names of its folders")
    values = partition_values(folders, partitions) if partitions else ()
    if values is None:
        names = ", ".join(column.name for column in partitions)
        raise LeftToSpark(f"the folders of {path} are not those of {names} as Spark writes them")
    if Path(path).name in _SUMMARIES:
        raise LeftToSpark(f"the file {path} is a summary of others")
    try:
        status = Path(path).stat()
    except OSError as error:
        raise LeftToSpark(f"the file {path} cannot be read ({error})") from error
    if status.st_mtime_ns // 10**6 != entry["timestamp"]:
        raise LeftToSpark(f"the file {path} was changed since Spark listed it")
    return InputFile(path, status.st_size, entry["timestamp"], values)


def local_path(uri: str) -> str | None:
    """The path of a file on this machine, by its URI as Spark writes it; None for one of another system."""
    if uri.startswith(_LOCAL):
        return unquote(uri.removeprefix(_LOCAL))
    return unquote(uri.removeprefix("file:")) if uri.startswith("file:/") else None
