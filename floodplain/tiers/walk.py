"""Lists the files under a directory in name order."""

import os
from collections.abc import Iterator
from pathlib import Path

from floodplain.tiers.files.plain import check_kind
from floodplain.tiers.paths import TEMPS, is_blob


def walk(root: Path, prefix: str, after: str) -> Iterator[tuple[str, int]]:
    """(name, size) of the blobs under ``root`` that start with ``prefix`` and are greater than ``after``, ascending.

    A missing directory is empty, a file that vanishes meanwhile is skipped, and files that no blob name can mean
    are not shown. ``Refused`` if one of those names is neither a file nor a folder.
    """
    lead = prefix[: prefix.rfind("/") + 1]
    yield from _walk(root / lead, lead, prefix, after)


def _walk(folder: Path, lead: str, prefix: str, after: str) -> Iterator[tuple[str, int]]:
    for key, entry in sorted(_entries(folder, lead, prefix, after), key=lambda status: status[0]):
        if key.endswith("/"):
            yield from _walk(folder / entry.name, key, prefix, after)
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        check_kind(entry.path, status.st_mode)
        yield key, status.st_size


def _entries(folder: Path, lead: str, prefix: str, after: str) -> list[tuple[str, os.DirEntry[str]]]:
    """What may lead to a name asked for. A directory's key ends in ``/``, so keys sort as the names below them do."""
    reached = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = lead + entry.name
                if not is_blob(name):
                    continue
                key = name + "/" if entry.is_dir(follow_symlinks=False) else name
                if _reaches(key, prefix, after):
                    reached.append((key, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return reached


def _reaches(key: str, prefix: str, after: str) -> bool:
    if key.endswith("/"):
        return key != TEMPS and (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key))
    return key.startswith(prefix) and key > after
