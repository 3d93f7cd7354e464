"""Checks that a store can be created at a location: empty, or with the remains of an interrupted creation."""

from floodplain.errors import BadInput, NotFound, short
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs

SHOWN = 5
"""Of what is there, in the message."""
_PARTS = {
    name.rstrip("/") for name in (paths.LOG, paths.MANIFESTS, paths.FENCES, paths.RUNS, paths.SEEN, paths.STAGED, paths.PINS)
}
_HARMLESS = {paths.PROBES.rstrip("/"), paths.TEMPS.rstrip("/"), "checkpoint", "lost+found", ".DS_Store"}
"""What may be there before the first object of a store is: left by a start that was cut short, or by the file system."""


def check_vacant(blobs: Blobs) -> None:
    """Raise ``BadInput``, naming what is there, where there is something and no store.

    The first object of a store is written before all others and never deleted. So who sees others, and then not the first, sees
    no store that another process is making at this moment.
    """
    if _is_store(blobs):
        return
    others = sorted(set(blobs.top()) - _HARMLESS)
    if not others or _is_store(blobs):
        return
    shown = ", ".join(short(name, 80, quoted=False) for name in others[:SHOWN])
    shown += f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    if set(others) <= _PARTS:
        raise BadInput(f"{blobs.url} has {shown} of a store, and not its object {paths.FORMAT!r}: restore that from a backup")
    raise BadInput(f"{blobs.url} holds something else than a Floodplain store: {shown}. Choose an empty folder, or a new one")


def _is_store(blobs: Blobs) -> bool:
    try:
        blobs.size(paths.FORMAT)
    except NotFound:
        return False
    return True
