"""Writes manifest checkpoints, so that opening a store reads a bounded part of the log."""

import logging

from floodplain.errors import Corrupt, FloodplainError
from floodplain.versions.log import manifests
from floodplain.versions.log.history import History
from floodplain.versions.records.manifest import Manifest

_log = logging.getLogger(__name__)


def maybe_checkpoint(history: History) -> bool:
    """Write a checkpoint of the head if the last one is ``checkpoint_every`` positions behind; whether one was written.

    Call it after a commit. It never fails: without it the store is as good, only slower to open, so trouble is logged and
    kept in ``history.checkpoint_failure``, and the next call tries again. One that another process overtook is no trouble.
    """
    head = history.head
    if head.position - history.checkpointed < history.settings.checkpoint_every:
        return False
    try:
        _save(history, head)
    except FloodplainError as error:
        history.checkpoint_failure = error
        _log.warning("no manifest checkpoint at position %d: %s", head.position, error)
        return False
    history.checkpoint_failure = None
    return history.checkpointed == head.position


def _save(history: History, head: Manifest) -> None:
    try:
        manifests.save(history.blobs, head, history.settings.retry, history.clock, history.randomness)
        history.advance_checkpointed(head.position)
    except Corrupt:
        history.refresh()
        if history.checkpointed <= head.position:
            raise
