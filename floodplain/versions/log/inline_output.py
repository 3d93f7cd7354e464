"""Staged output that rides in the edit of its epoch."""

from floodplain.errors import Corrupt
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log.replay import edit_at
from floodplain.versions.records.edit import CommitEpoch, Edit
from floodplain.versions.records.frame import Kind, checksum, decode
from floodplain.versions.records.manifest import Manifest


def inline_outputs(blobs: Blobs, head: Manifest) -> dict[str, bytes]:
    """The output of the last epoch that its edit holds, by name. The log is not trimmed there before it is published.

    Raises ``Corrupt``, naming the edit.
    """
    if not head.inline:
        return {}
    mark = head.epochs[-1]
    file, last_good = paths.log(mark.position), max(head.epoch - 1, 0)
    data = edit_at(blobs, mark.position)
    if data is None:
        raise Corrupt(file, f"the edit with the output of epoch {head.epoch}", "no such file", last_good)
    if checksum(data) != mark.chain:
        raise Corrupt(file, f"checksum {mark.chain}", f"checksum {checksum(data)}", last_good)
    edit = decode(Kind.EDIT, Edit, data, file)
    return next(update.inline for update in edit.updates if isinstance(update, CommitEpoch))
