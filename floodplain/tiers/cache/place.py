"""Where a cache is: one for a machine, or one for each executor of Spark."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import xxhash

from floodplain.settings import CacheSettings
from floodplain.tiers.files.modes import Modes

SCRATCH = "SPARK_LOCAL_DIRS"
"""Spark tells each Python process of an executor the scratch folders of that executor, and deletes them when it ends."""
_PREFIX = "executor-"
_OWNER = "owner"


def root_of(settings: CacheSettings, environment: Mapping[str, str], modes: Modes) -> Path:
    """The folder of the cache that this process uses. Folders of executors that have ended are deleted."""
    root = Path(settings.directory).expanduser()
    if settings.per == "machine":
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    modes.make_folder(root)
    _delete_abandoned(root)
    scratch = environment.get(SCRATCH, "")
    own = root / (_PREFIX + xxhash.xxh3_64_hexdigest(scratch.encode()) if scratch else "driver")
    if scratch:
        modes.make_folder(own)
        with suppress(FileExistsError), (own / _OWNER).open("x") as owner:
            owner.write(scratch)
    return own


def _delete_abandoned(root: Path) -> None:
    """What processes have mapped of it stays readable. A folder that has no owner yet is just being made."""
    for folder in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            scratch = (folder / _OWNER).read_text()
            if scratch and not any(Path(each).exists() for each in scratch.split(",")):
                shutil.rmtree(folder, ignore_errors=True)
