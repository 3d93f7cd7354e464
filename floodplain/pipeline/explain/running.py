"""A running pipeline explained: the dataflow with slots, tables and definitions as the state has them now."""

from dataclasses import replace

from floodplain.pipeline.explain.graph import About, picture
from floodplain.pipeline.explain.text import Form, explained
from floodplain.runtime.epoch_runner import EpochRunner


def explain_running(epochs: EpochRunner, described: About, form: Form) -> str:
    """``described``: what the stream says of its input. Requires: ``epochs.prepare`` was called."""
    head = epochs.store.head
    about = replace(
        described,
        slots=epochs.slots,
        key_groups=head.key_groups,
        location=epochs.bound.place.location,
        operators=epochs.bound.operators,
        schemas=epochs.bound.schemas,
        definitions=head.definitions,
        together=epochs.bound.preaggregates,
    )
    return explained(picture(epochs.bound.plan, about), form)
