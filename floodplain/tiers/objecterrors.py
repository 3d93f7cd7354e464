"""What an object store says, in the words of ``floodplain.errors``.

obstore tells the HTTP status only in its text, so the text is read for it.
"""

import re

from obstore import exceptions as obstore_errors

from floodplain.errors import AlreadyExists, FloodplainError, NotFound, Refused, Unavailable

_STATUS = re.compile(r"status code: (\d{3})")
_PASSING = {408, 409, 425, 429}
_FOR_GOOD = (
    obstore_errors.InvalidPathError,
    obstore_errors.NotSupportedError,
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    obstore_errors.UnknownConfigurationKeyError,
    TypeError,
    ValueError,
)


def object_error(error: Exception, doing: str) -> FloodplainError:
    """The error to raise for ``error``, met while ``doing``. What cannot be told apart counts as passing."""
    text = str(error)
    return _kind(error, text)(f"{doing} failed: {_first_line(text)}")


def past_the_end(error: Exception) -> bool:
    """Whether ``error`` says that a range starts at or behind the end of the object."""
    text = str(error)
    return _status(text) == 416 or "Wanted range starting at" in text


def _kind(error: Exception, text: str) -> type[FloodplainError]:
    status = _status(text)
    if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text and "ContainerNotFound" not in text:
        return NotFound
    if isinstance(error, obstore_errors.AlreadyExistsError | obstore_errors.PreconditionError):
        # S3 answers 409 to a conditional put that met another one: it may have stored nothing. Azure answers it for a taken name.
        return Unavailable if status == 409 and "BlobAlreadyExists" not in text else AlreadyExists
    if isinstance(error, _FOR_GOOD):
        return Refused
    if status is not None and 300 <= status < 500 and status not in _PASSING and "<Code>RequestTimeout</Code>" not in text:
        return Refused
    return Unavailable


def _status(text: str) -> int | None:
    match = _STATUS.search(text)
    return int(match[1]) if match else None


def _first_line(text: str) -> str:
    line = text.partition("\n")[0].partition(": <?xml")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    return f"{line} ({code[1]})" if code else line
