"""Reserved disk space, so that garbage collection can commit its edit on a full disk."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from floodplain.tiers.files.modes import AS_UMASK, Modes

NAME = "reserve"
_PIECE = 1 << 16


class Reserve:
    """A file that occupies the reserved space until it is released."""

    def __init__(self, path: Path, modes: Modes = AS_UMASK) -> None:
        self._path = path
        self._modes = modes

    def keep(self, size_bytes: int, temp: Path) -> bool:
        """Whether so much room is set aside on return. ``temp``: a free name beside it. Requires: its folder is there."""
        if self._size() >= size_bytes:
            return True
        try:
            fd = self._modes.open(temp, os.O_WRONLY | os.O_EXCL)
            try:
                _take_up(fd, size_bytes)
            finally:
                os.close(fd)
            temp.rename(self._path)
        except OSError:
            # There is no room for it now. What needs it says so by itself.
            temp.unlink(missing_ok=True)
            return False
        return True

    def give_up(self) -> int:
        """How many bytes that frees; 0 if there was none."""
        size_bytes = self._size()
        try:
            self._path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return size_bytes

    def _size(self) -> int:
        """By what it takes up, not by what it says."""
        with suppress(OSError):
            return os.lstat(self._path).st_blocks * 512
        return 0


def _take_up(fd: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    for _ in range(-(-size_bytes // _PIECE)):
        os.write(fd, bytes(_PIECE))
