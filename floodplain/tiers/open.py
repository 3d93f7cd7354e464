"""From a location to the stack of tiers behind it."""

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from floodplain.clock import Clock, Randomness
from floodplain.errors import BadInput
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.cached import CachedBlobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.tiers.files.modes import Modes
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.tiers.objects import ObjectBlobs
from floodplain.tiers.redact import without_credentials
from floodplain.tiers.retry import Retrying

_URL = re.compile(r"[A-Za-z0-9+.-]*://")
_FILE_URL = re.compile(r"file:/", re.IGNORECASE)
"""With one slash, too, as Hadoop writes it."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_spaces: dict[str, Space] = {}
_spaces_lock = threading.Lock()


def open_blobs(
    location: str | os.PathLike[str],
    settings: StoreSettings,
    *,
    options: Mapping[str, str] | None = None,
    clock: Clock,
    randomness: Randomness,
    counters: Counters,
) -> Blobs:
    """The blobs at ``location``.

    A path or ``file://`` URL (see ``folder_of``) is a directory, made when first written to. ``memory://name`` is the same space
    each time it is opened in one process. ``s3://``, ``gs://`` and ``az://`` are object stores, with the caches that
    ``settings`` ask for; ``options`` (endpoint, credentials, ...) go before what the environment says.
    """
    text = os.fspath(location)
    folder = folder_of(text)
    if folder is not None:
        modes = Modes(settings.mode)
        return DirectoryBlobs(
            folder, sync=settings.sync, mapped=settings.map, modes=modes, randomness=randomness, counters=counters
        )
    scheme = text.partition("://")[0]
    if scheme == "memory":
        with _spaces_lock:
            space = _spaces.setdefault(text.rstrip("/"), Space())
        return MemoryBlobs(without_credentials(text), counters, space)
    if scheme in ("s3", "gs", "az"):
        return _object_store(text, settings, options or {}, clock, randomness, counters)
    raise BadInput(f"cannot open {without_credentials(text)!r}: use a path, or a file://, memory://, s3://, gs:// or az:// URL")


def folder_of(location: str) -> Path | None:
    """The folder that a location means, absolute, or None if it is not one of this machine's file system.

    A path is taken as it is, percent signs and all, but for ``~`` at its beginning, which is the home of the user. In a ``file:``
    URL a percent sign begins an escape. Raises ``BadInput`` for what is neither.
    """
    if not location or "\0" in location:
        raise BadInput(f"cannot open {without_credentials(location)!r}: give a path or a URL")
    if _FILE_URL.match(location):
        return Path(_path_of(location))
    if _URL.match(location):
        return None
    return Path(os.path.expanduser(location)).absolute()  # noqa: PTH111 — a Path takes ./~ for ~, and fails without a home


def _object_store(
    url: str, settings: StoreSettings, options: Mapping[str, str], clock: Clock, randomness: Randomness, counters: Counters
) -> Blobs:
    blobs: Blobs = ObjectBlobs(url, options, settings.retry, counters)
    blobs = Retrying(blobs, settings.retry, clock=clock, randomness=randomness, counters=counters)
    space = f"{blobs.url} {_endpoint(options)}"
    modes = Modes(settings.mode)
    for tier, cache in {"disk": settings.cache, "tmpfs": settings.tmpfs}.items():
        if cache:
            blobs = CachedBlobs(
                blobs, cache, tier=tier, space=space, mapped=settings.map, modes=modes, clock=clock, counters=counters
            )
    return blobs


def _endpoint(options: Mapping[str, str]) -> str:
    """The endpoint as far as it was set: the same bucket at another endpoint is another store."""
    endpoints = [value for key, value in sorted(options.items()) if "endpoint" in key.lower()]
    return " ".join(endpoints or [os.environ[key] for key in _ENDPOINTS if key in os.environ])


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise BadInput(f"cannot open {without_credentials(url)!r}: a file URL has an absolute path, as in file:///srv/state")
    if "?" in url or "#" in url:
        raise BadInput(
            f"cannot open {without_credentials(url)!r} and what follows: in a file URL write %3F for a question mark and "
            "%23 for a hash, or give a path"
        )
    path = unquote(parts.path)
    if "\0" in path:
        raise BadInput(f"cannot open {without_credentials(url)!r}: give a path or a URL")
    return path
