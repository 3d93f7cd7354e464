"""Only plain files and folders are read in a store's folder: links and devices are refused."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from floodplain.errors import Refused

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_kind(path: str | os.PathLike[str], mode: int) -> None:
    """Raise ``Refused`` unless ``mode`` is that of a plain file or folder."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise Refused(
            f"{os.fspath(path)} is {kind}: the folder of a store holds plain files and folders only, so it was left alone. "
            "Put back the file or folder that belongs there, or remove it"
        )


def check_folders(root: Path, folder: Path) -> None:
    """Raise ``Refused`` if anything from below ``root`` up to ``folder`` is there and neither file nor folder.

    The root itself may be a link: it is where the user says it is. Requires: ``folder`` is ``root`` or under it.
    """
    while folder != root:
        try:
            mode = os.lstat(folder).st_mode
        except (FileNotFoundError, NotADirectoryError):
            pass
        else:
            check_kind(folder, mode)
        folder = folder.parent


def check_tree(folder: Path, most_bytes: int) -> None:
    """Raise ``Refused`` if anything in ``folder``, or itself, is neither a plain folder nor a plain file of that size at most."""
    try:
        check_kind(folder, os.lstat(folder).st_mode)
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            check_tree(Path(entry.path), most_bytes)
            continue
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            check_kind(entry.path, status.st_mode)
            if status.st_size > most_bytes:
                raise Refused(f"{entry.path} has {status.st_size} bytes, more than a file there can have: remove it")
