"""A stateful step fitted to the columns of its input: checked, with all that a task must know to run it."""

from dataclasses import replace

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.eventtime.times import check_time
from floodplain.expressions.columns import hint
from floodplain.operators.kernel.late_rows import LATE, late_columns
from floodplain.operators.kernel.operator import KeyedOperator, bind_process, check_ends
from floodplain.operators.kernel.reserved_columns import PREFIX
from floodplain.plan.nodes import Keyed, Plan
from floodplain.store.rows.layout import HASH


def fitted_operator(step: Keyed, rows: pa.Schema, plan: Plan) -> KeyedOperator:
    """Raises ``BadInput`` where the step cannot run on rows with these columns."""
    _check_columns(step, rows)
    named = step.event_time or plan.event_time
    event_time = named if named in rows.names else None
    process = bind_process(step.name, step.process, rows, step.keys, event_time)
    if event_time is not None:
        check_time(f"operator {step.name}", event_time.removeprefix(PREFIX), rows.field(event_time).type)
    if plan.event_time is None:
        check_ends(step.name, process)
    keys = {name: rows.field(name).type for name in step.keys}
    late = late_columns(step.name, rows) if plan.wants_late(step) and LATE not in process.side_outputs else None
    in_order = None if step.in_order is None else replace(step.in_order, columns=rows)
    from_input = plan.reads_input(step)
    timed = plan.event_time is not None
    return KeyedOperator(
        step.name, process, keys, event_time, from_input, step.on_error, late, in_order, step.lateness_ms, has_watermark=timed
    )


def _check_columns(step: Keyed, rows: pa.Schema) -> None:
    for name in step.keys:
        if not rows.get_all_field_indices(name):
            there = ", ".join(rows.names)
            raise BadInput(f"operator {step.name}: there is no column {name} to key by; there are: {there}{hint(name, 'key_by')}")
    if HASH in rows.names:
        raise BadInput(
            f"operator {step.name}: a column of its rows is called {HASH}, as their hash is on the way to it: rename it"
        )
