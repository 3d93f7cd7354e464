"""Names for epochs. A tagged epoch stays readable until the tag is dropped."""

from floodplain.errors import BadInput, Conflict, SnapshotExpired
from floodplain.tiers.paths import checked_name
from floodplain.versions.log.commit import commit
from floodplain.versions.log.history import History
from floodplain.versions.log.requirements import RequireRetained
from floodplain.versions.records.edit import DropTag, SetTag
from floodplain.versions.records.manifest import Manifest


def set_tag(history: History, name: str, epoch: int) -> Manifest:
    """Name a retained epoch; a name that is taken moves there."""
    checked_name("tag", name)
    if epoch > history.refresh().epoch:
        raise BadInput(f"epoch {epoch} is not committed yet: the last one is {history.head.epoch}")
    try:
        return commit(history, [SetTag(name, epoch)], [RequireRetained(epoch)])
    except Conflict as gone:
        raise SnapshotExpired(f"cannot tag epoch {epoch} as {name!r}: {gone}") from gone


def drop_tag(history: History, name: str) -> Manifest:
    """Remove a tag. Its epoch goes with the next collection unless the retention settings keep it."""
    checked_name("tag", name)
    head = history.refresh()
    if name not in head.tags:
        raise BadInput(f"there is no tag {name!r}; there are: {', '.join(sorted(head.tags)) or 'none'}")
    return commit(history, [DropTag(name)])
