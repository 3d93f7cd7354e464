"""Spark's batch numbers and our epochs. Batch n is epoch n + 1, as ``foreachBatch`` of the drop-in counts."""

from floodplain.runtime.checkpoint.spark_checkpoint import is_noted
from floodplain.spark.state_reader.conditions import no_batch
from floodplain.store.store import Store
from floodplain.tiers.open import folder_of
from floodplain.versions.records.manifest import Manifest


def epoch_of(batch: int) -> int:
    return batch + 1


def batch_of(epoch: int) -> int:
    return epoch - 1


def last_epoch(head: Manifest, location: str) -> int:
    """The last epoch that is over; 0 for none.

    As in Spark, a batch counts once its output is through. Until then ``foreachBatch`` reads the state of the batch before. Our
    own log tells that only with the next epoch, so Spark's note on the batch is looked for. On an object store there is none to
    look at, and the last epoch counts as soon as it is in the log.
    """
    folder = folder_of(location)
    checkpoint = None if folder is None else folder / "checkpoint"
    if head.published >= head.epoch or checkpoint is None or not checkpoint.is_dir():
        return head.epoch
    return head.epoch if is_noted(checkpoint, head.source.batch_id) else head.epoch - 1


def read_epoch(store: Store, location: str, batch: int | None) -> int:
    """The epoch of a batch that can be read, by default of the last that is over."""
    head = store.history.refresh()
    if batch is None:
        epoch = last_epoch(head, location)
        if not epoch:
            raise no_batch(location, "no epoch has been committed and published yet")
        return epoch
    epoch = epoch_of(batch)
    if head.mark(epoch) is None:
        readable = ", ".join(str(batch_of(mark.epoch)) for mark in head.epochs) or "none"
        raise no_batch(
            location, f"batch {batch} is not committed yet or no longer retained; batches that can be read: {readable}"
        )
    return epoch
