"""Late rows and their drop reasons."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodplain.errors import BadInput
from floodplain.eventtime.times import END_MS, NONE_MS, as_ms
from floodplain.operators.kernel.reserved_columns import PREFIX
from floodplain.operators.kernel.segments import filled
from floodplain.state.durations import to_ms
from floodplain.store.rows.layout import one_array

LATE = "late"
"""The side output of late rows, if it is declared or read."""
REASON = "reason"
"""The column of a ``late`` output with the drop reason: operator, how late the row was, and the watermark."""
WHOLE = f"{PREFIX}whole_row"
"""A struct column with all input columns, where an operator gets only some of them and its late rows are read."""


def parse_lateness(operator: str, lateness: str | timedelta, *, in_order: object = False, bounded_by: str = "") -> int:
    """The argument ``lateness`` in ms. ``bounded_by``: the omitted arguments without which no row is late for the operator."""
    lateness_ms = to_ms(lateness, "lateness")
    if lateness_ms and bounded_by:
        raise BadInput(f"{operator}: without {bounded_by} it drops no late rows: omit lateness, or set {bounded_by}")
    if lateness_ms and in_order:
        raise BadInput(f"{operator}: with in_order no lateness can be allowed: set in_order or lateness, not both")
    return lateness_ms


def late_columns(operator: str, rows: pa.Schema) -> pa.Schema:
    """The schema of late rows: the input columns and the drop reason."""
    if WHOLE in rows.names:
        rows = pa.schema([pa.field(field.name, field.type) for field in rows.field(WHOLE).type])
    if REASON in rows.names:
        raise BadInput(f"operator {operator}: late() adds a column {REASON}, and its input has one: rename that")
    return rows.append(pa.field(REASON, pa.string()))


def with_reasons(late: pa.Table, operator: str, event_time: str | None, late_ms: int) -> pa.Table:
    """Late rows with all input columns and their drop reason. If they have a reason already, it stays."""
    if WHOLE in late.column_names:
        whole = one_array(late.column(WHOLE))
        late = pa.Table.from_arrays(whole.flatten(), names=[field.name for field in whole.type])
    if REASON in late.column_names:
        return late
    watermark = f": the watermark was {moment(late_ms)}"
    reasons = pa.repeat(pa.scalar(f"late for {operator}{watermark}"), len(late))
    if event_time is not None and len(late):
        times = as_ms(late.column(event_time))
        if late_ms not in (NONE_MS, END_MS):
            by = pa.array(np.char.add((late_ms - filled(times, late_ms)).astype(str), " ms"))
            reasons = pc.binary_join_element_wise(f"late for {operator} by ", by, watermark, "")
        reasons = pc.if_else(times.is_valid(), reasons, f"has no time, and {operator} needs one")
    return late.append_column(REASON, reasons)


def moment(at_ms: int) -> str:
    """A time as text."""
    if at_ms in (NONE_MS, END_MS):
        return "not there yet" if at_ms == NONE_MS else "at the end of all times"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
