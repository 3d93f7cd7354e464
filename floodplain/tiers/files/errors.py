"""Maps errors of the operating system to ``floodplain.errors``."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from floodplain.errors import FloodplainError, NoSpace, Refused, Unavailable

_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOENT,  # of a temporary file that a sweep took; a missing blob is NotFound before it comes here
    errno.ENOMEM,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_ROOM = (
    "free some space, or run floodplain gc on the state, with fewer epochs to keep if need be, which has room set aside for "
    "itself; then start the query again"
)
_HINTS = {
    errno.ENOSPC: f"the disk is full: {_ROOM}",
    errno.EDQUOT: f"the quota is used up: raise it, or {_ROOM}",
    errno.EACCES: "check the permissions",
    errno.EROFS: "the file system is read-only",
    errno.EPERM: "check the permissions, and that the file system has hard links",
    errno.EOPNOTSUPP: "the file system has no hard links; use another",
    errno.EMLINK: "the file system has no more links for it",
}


def os_error(error: OSError, doing: str) -> FloodplainError:
    """The error to raise for ``error``, met while ``doing``: passing faults are ``Unavailable``, a full disk is
    ``NoSpace``, others are ``Refused``."""
    kind = Unavailable if error.errno in _PASSING else NoSpace if error.errno in _FULL else Refused
    hint = _HINTS.get(error.errno or 0)
    return kind(f"{doing} failed: {error.strerror or error}" + (f"; {hint}" if hint else ""))


@contextmanager
def as_ours(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise os_error(error, doing) from error


@contextmanager
def no_space_as_ours(doing: str) -> Iterator[None]:
    """For what also does other things than ``doing``: only a full disk is sure to be met by it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise os_error(error, doing) from error
