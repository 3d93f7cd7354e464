"""All objects of a store, by one listing."""

from floodplain.tiers import paths
from floodplain.tiers.blobs import BlobInfo, Blobs


class Listing:
    """What was there at one time: what came since is missing, and what is in it may be gone."""

    def __init__(self, blobs: Blobs) -> None:
        self._of: dict[str, list[BlobInfo]] = {}
        for info in blobs.list(""):
            self._of.setdefault(info.name[: info.name.find("/") + 1], []).append(info)

    def under(self, *prefixes: str) -> list[BlobInfo]:
        """The objects below these prefixes, each of which ends its first segment (``log/``)."""
        return [info for prefix in prefixes for info in self._of.get(prefix, ())]

    def positions(self, prefix: str) -> list[tuple[int, BlobInfo]]:
        """The edits or checkpoints, ascending."""
        numbered = ((paths.position_of(info.name), info) for info in self.under(prefix))
        return [
            (position, info)
            for position, info in numbered
            if position is not None and info.name in (paths.log(position), paths.manifest(position))
        ]
