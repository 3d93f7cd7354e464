"""``explain`` of a running pipeline: the dataflow with its current slots, tables and recorded definitions."""

from dataclasses import replace

from floodplain.pipeline.explain.graph import About, dataflow_graph
from floodplain.pipeline.explain.text import Form, explained
from floodplain.runtime.epoch_runner import EpochRunner


def explain_running(epochs: EpochRunner, described: About, form: Form) -> str:
    """``described``: ``Stream.about``. Requires: ``epochs.prepare`` was called."""
    head = epochs.store.head
    about = replace(
        described,
        slots=epochs.slots,
        assignments=epochs.parallelism.next(head).plans,
        key_groups=head.key_groups,
        location=epochs.bound.place.location,
        operators=epochs.bound.operators,
        schemas=epochs.bound.schemas,
        definitions=head.definitions,
        preaggregates=epochs.bound.preaggregates,
        engine=epochs.bound.engine.description,
        input_ways=epochs.bound.engine.input_ways(),
    )
    return explained(dataflow_graph(epochs.bound.plan, about), form)
