"""Files of Spark's checkpoint: read together with the checksum that Hadoop keeps beside each, and written with one."""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from floodplain.errors import short

SOURCES = "sources/"
LOGS = ("offsets", "commits")
_MAGIC = b"crc\0"
_BYTES_PER_SUM = 512
_VERSIONS = ("v1", "v2", "v3")
_ENTRY = re.compile(r"(\d+)(\.compact)?")
_CHECKSUM_OR_ENTRY = re.compile(r"\.?\d+(\.compact)?(\.crc)?")


@dataclass(frozen=True, slots=True)
class File:
    """What a file holds, and what its checksum says of that."""

    data: bytes | None
    """None: there is no such file."""
    vouched: bool | None
    """Whether these are the bytes that the checksum was made of. None: there is no checksum."""

    @property
    def text(self) -> str:
        """Raises ``ValueError`` if it is no text."""
        return (self.data or b"").decode()


def read(path: Path) -> File:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return File(None, None)
    try:
        sums = _checksum_of(path).read_bytes()
    except FileNotFoundError:
        return File(data, None)
    size = int.from_bytes(sums[4:8])
    return File(data, size > 0 and sums == _checksum(data, size))


def write(path: Path, text: str) -> None:
    """The file and its checksum. Requires: what was there before is gone, checksums included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    _checksum_of(path).write_bytes(_checksum(text.encode(), _BYTES_PER_SUM))


def remove(path: Path) -> None:
    """The file with all checksums of it: Hadoop's and, where the user has Spark write one, Spark's."""
    for each in (path, _checksum_of(path), path.with_name(f"{path.name}.crc")):
        each.unlink(missing_ok=True)


def remove_entries(folder: Path) -> None:
    """Of a source's folder all numbered files with their checksums; what else the source keeps there stays."""
    for path in list(folder.iterdir()):
        if path.is_file() and _CHECKSUM_OR_ENTRY.fullmatch(path.name):
            path.unlink()


def _checksum_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _checksum(data: bytes, size: int) -> bytes:
    """As Hadoop writes it: one CRC-32 for each ``size`` bytes."""
    sums = (zlib.crc32(data[at : at + size]).to_bytes(4) for at in range(0, len(data), size))
    return _MAGIC + size.to_bytes(4) + b"".join(sums)


def numbers(log: Path) -> list[int]:
    """The batches that one of Spark's logs has, ascending."""
    return sorted(int(path.name) for path in log.glob("[0-9]*") if path.name.isdigit())


def source_folders(checkpoint: Path) -> list[str]:
    """Where sources keep what they note, by name below the checkpoint."""
    return sorted(f"{SOURCES}{path.name}" for path in (checkpoint / SOURCES).glob("*") if path.is_dir())


def entries(checkpoint: Path, folder: str) -> dict[str, tuple[int, bool]]:
    """The valid entries of a source's log, in order: the newest ``n.compact`` and those after it. Name → number, and whether
    it replaces all entries up to it."""
    if not (checkpoint / folder).is_dir():
        return {}
    paths = [path for path in (checkpoint / folder).iterdir() if path.is_file()]
    numbered = {f"{folder}/{path.name}": entry for path in paths if (entry := entry_of(path.name))}
    since = max((number for number, compact in numbered.values() if compact), default=-1)
    counting = [(entry, name) for name, entry in numbered.items() if entry[0] > since or entry == (since, True)]
    return {name: entry for entry, name in sorted(counting)}


def entry_of(name: str) -> tuple[int, bool] | None:
    """Number of the entry, and whether it replaces all up to it, if a file of this name is one."""
    match = _ENTRY.fullmatch(name.rpartition("/")[2])
    return None if match is None else (int(match[1]), match[2] is not None)


def differs(file: File, text: str) -> str | None:
    """What is wrong with a file that must hold this text; None if nothing is."""
    if file.data is None:
        return f"expected {len(text.encode())} bytes, found no such file"
    if file.data != text.encode():
        return _first_difference(text, file.data.decode(errors="replace"))
    return None if file.vouched is not False else "expected the checksum of its content beside it, found another"


def replaced(name: str, kept: Iterable[str]) -> bool:
    """Whether a source has compacted its entries up to this one into one of ``kept``."""
    source, entry = name.rpartition("/")[0], entry_of(name)
    others = [entry_of(other) for other in kept if other.rpartition("/")[0] == source]
    return entry is None or any(other is not None and other[1] and other[0] >= entry[0] for other in others)


def _first_difference(expected: str, text: str) -> str:
    """``text`` may be equal to ``expected``: then the bytes that were not decodable differ."""
    lines = zip_longest(expected.split("\n"), text.split("\n"), fillvalue=None)
    for number, (one, other) in enumerate(lines, 1):
        if one != other:
            return f"in line {number} expected {_shown(one)}, found {_shown(other)}"
    return "expected text, found other bytes"


def _shown(line: str | None) -> str:
    return "no such line" if line is None else short(line, 200)


def unproven(file: File) -> str | None:
    """Why a file that the state does not know cannot be relied on; None if it can."""
    if file.data is None:
        return "expected a file, found none"
    if not file.data:
        return "expected an entry, found an empty file"
    if file.vouched is None:
        return "expected a checksum that vouches for its content, found none beside it"
    return None if file.vouched else "expected the content that its checksum was made of, found other bytes"


def malformed(file: File, form: Callable[[str], object]) -> str | None:
    """Why a file is not of this form, by the ``ValueError`` that tells so; None if it is."""
    try:
        form(file.text)
    except UnicodeDecodeError:
        return "expected text, found other bytes"
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class Planned:
    """An entry of the offset log."""

    version: str
    watermark_ms: int
    timestamp_ms: int
    offsets: tuple[str, ...]
    """One for each source."""


def planned(text: str) -> Planned:
    """Raises ``ValueError`` that says what was expected and what was found."""
    version, times, *offsets = _versioned(text)
    for line in offsets:
        if line.startswith("{"):  # by far the most are; sources may write what they like
            _json(line)
    return Planned(version, _int(times, "batchWatermarkMs"), _int(times, "batchTimestampMs"), tuple(offsets))


def next_watermark_of(text: str) -> int:
    """Of an entry of the commit log; 0 if it has none. Raises ``ValueError`` that says what was expected and found."""
    _, noted, *_ = _versioned(text)
    return _int(noted, "nextBatchWatermarkMs") if "nextBatchWatermarkMs" in noted else 0


def query_id_of(text: str) -> str:
    """Of ``metadata``. Raises ``ValueError`` that says what was expected and found."""
    metadata = _json(text)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("id"), str):
        raise ValueError(f"expected the id of a query, found {short(text, 200)}")
    return str(metadata["id"])


def _versioned(text: str) -> list[Any]:
    """The version, the object in the second line, and the lines behind it."""
    version, *lines = text.splitlines() or [""]
    if version not in _VERSIONS:
        raise ValueError(f"expected one of the versions {', '.join(_VERSIONS)} in line 1, found {short(version, 200)}")
    held = _json(lines[0] if lines else "")
    if not isinstance(held, dict):
        raise ValueError(f"expected an object in line 2, found {short(lines[0], 200)}")
    return [version, held, *lines[1:]]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"expected JSON, found {short(text, 200)}") from None


def _int(held: dict[str, Any], name: str) -> int:
    value = held.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a number {name}, found {short(value, 200)}")
    return value


def unlisted(checkpoint: Path, plan: Planned) -> str | None:
    """Which entry of a source of files an entry of the offset log goes by that is not there; None if all are."""
    there = {number for folder in source_folders(checkpoint) for number, _ in entries(checkpoint, folder).values()}
    for line in plan.offsets:
        held = _json(line) if line.startswith("{") else None
        number = held.get("logOffset") if isinstance(held, dict) else None
        if isinstance(number, int) and number >= 0 and number not in there:
            return f"expected an entry {number} below {SOURCES}, by which it goes, found none"
    return None


def content_lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines of a source's entries, without those that say the version."""
    for text in texts:
        yield from (line for line in text.split("\n")[1:] if line)
