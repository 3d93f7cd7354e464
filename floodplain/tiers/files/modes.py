"""The permissions of files and folders that a store writes: those of a setting, or what the umask of the process leaves."""

import os
import stat
from pathlib import Path


class Modes:
    """Opens files and makes folders. What is there already, and belongs to another user, keeps its permissions."""

    def __init__(self, mode: int | None) -> None:
        """``mode``: that of files; folders also have ``x`` where it has ``r``. None: as the umask has it."""
        self._file = mode
        self._folder = None if mode is None else mode | (mode & 0o444) >> 2

    def open(self, path: Path, flags: int) -> int:
        """The descriptor of a file that may be made by this. At no time can more be done with it than in the end."""
        if self._file is None:
            return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, self._file)
        try:
            status = os.fstat(fd)
            if _differs(status, self._file):
                os.fchmod(fd, self._file)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def make_folder(self, path: Path) -> None:
        """One that is there is left as it is. Requires: the folder that it is in exists."""
        try:
            path.mkdir(mode=0o777 if self._folder is None else self._folder)
        except FileExistsError:
            if not path.is_dir():
                raise
            return
        self._set_folder(path)

    def set_all(self, folder: Path) -> None:
        """A folder with all that is in it gets these permissions, as far as it is there. Links are not followed."""
        if self._file is None or not folder.is_dir() or folder.is_symlink():
            return
        self._set_folder(folder)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                self.set_all(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and _differs(entry.stat(follow_symlinks=False), self._file):
                os.chmod(entry.path, self._file, follow_symlinks=False)  # noqa: PTH101

    def _set_folder(self, path: Path) -> None:
        if self._folder is None:
            return
        status = path.stat()
        if _differs(status, self._folder):
            # A group or restriction that the file system hands down from the folder above stays.
            path.chmod(self._folder | stat.S_IMODE(status.st_mode) & ~0o777)


def _differs(status: os.stat_result, wanted: int) -> bool:
    return stat.S_IMODE(status.st_mode) & 0o777 != wanted and status.st_uid == os.geteuid()


AS_UMASK = Modes(None)
