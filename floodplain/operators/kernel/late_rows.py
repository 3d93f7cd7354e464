"""Rows that came too late, and why."""

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
"""The side output that late rows come out of, if it is declared or read."""
REASON = "reason"
"""The column of a ``late`` output that says what a row was too late for, by how much, and what the watermark was."""
WHOLE = f"{PREFIX}whole_row"
"""The column, a struct, that has all columns of the input where an operator is given others and its late rows are read."""


def lateness_asked(operator: str, given: str | timedelta, *, in_order: object = False, bounded_by: str = "") -> int:
    """What an argument ``lateness`` means, in ms. ``bounded_by``: what was not given, without which no row is late for it."""
    lateness_ms = to_ms(given, "lateness")
    if lateness_ms and bounded_by:
        raise BadInput(
            f"{operator}: without {bounded_by} it takes all rows, however late: leave lateness out, or give {bounded_by}"
        )
    if lateness_ms and in_order:
        raise BadInput(f"{operator}: where rows come in order none can come late: give in_order or lateness, not both")
    return lateness_ms


def late_columns(operator: str, rows: pa.Schema) -> pa.Schema:
    """The columns of late rows: those of the input and the reason."""
    if WHOLE in rows.names:
        rows = pa.schema([pa.field(field.name, field.type) for field in rows.field(WHOLE).type])
    if REASON in rows.names:
        raise BadInput(f"operator {operator}: late() adds a column {REASON}, and its input has one: rename that")
    return rows.append(pa.field(REASON, pa.string()))


def with_reasons(late: pa.Table, operator: str, event_time: str | None, late_ms: int) -> pa.Table:
    """The rows, whole, with their reasons. One that the input has stays."""
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
    """A time in words."""
    if at_ms in (NONE_MS, END_MS):
        return "not there yet" if at_ms == NONE_MS else "at the end of all times"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
