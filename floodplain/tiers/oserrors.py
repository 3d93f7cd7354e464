"""What the operating system says, in the words of ``floodplain.errors``."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from floodplain.errors import FloodplainError, Refused, Unavailable

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
_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EACCES: "check the permissions",
    errno.EROFS: "the file system is read-only",
    errno.EPERM: "check the permissions, and that the file system has hard links",
    errno.EOPNOTSUPP: "the file system has no hard links; use another",
    errno.EMLINK: "the file system has no more links for it",
}


def os_error(error: OSError, doing: str) -> FloodplainError:
    """The error to raise for ``error``, met while ``doing``: passing faults are ``Unavailable``, others ``Refused``."""
    kind = Unavailable if error.errno in _PASSING else Refused
    hint = _HINTS.get(error.errno or 0)
    return kind(f"{doing} failed: {error.strerror or error}" + (f"; {hint}" if hint else ""))


@contextmanager
def as_ours(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise os_error(error, doing) from error
