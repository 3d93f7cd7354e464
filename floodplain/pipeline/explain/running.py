"""A running pipeline explained: the dataflow with slots, tables and definitions as the state has them now."""

from dataclasses import replace

from floodplain.pipeline.explain.graph import About, picture
from floodplain.pipeline.explain.text import Form, explained
from floodplain.runtime.epoch_plan import together_next
from floodplain.runtime.epoch_runner import Epochs


def explain_running(epochs: Epochs, described: About, form: Form) -> str:
    """``described``: what the stream says of its input. Requires: ``epochs.prepare`` was called."""
    head = epochs.store.head
    about = replace(
        described,
        slots=epochs.slots,
        key_groups=head.key_groups,
        location=epochs.location,
        operators=epochs.compiled.operators,
        schemas=epochs.compiled.schemas,
        definitions=head.definitions,
        together=together_next(epochs.compiled),
    )
    return explained(picture(epochs.plan, about), form)
