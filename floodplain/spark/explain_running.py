"""A running pipeline explained: the dataflow with slots, tables and definitions as the state has them now."""

from dataclasses import replace

from floodplain.spark.epochs import Epochs
from floodplain.spark.explain import About, picture
from floodplain.spark.explain_text import Form, explained
from floodplain.spark.steps import together_next


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
