"""Row checks: tasks run them on the rows that they stage, so that no epoch is committed that a sink cannot publish."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from floodplain.errors import UserError, short


class RowCheck(ABC):
    """What a sink requires of rows beyond their types. It is sent to tasks, so it has plain values and no connections."""

    @abstractmethod
    def first_refused(self, rows: pa.Table) -> tuple[int, str] | None:
        """The first row that could not be published, and why; None if all can."""


@dataclass(frozen=True, slots=True)
class SinkCheck:
    """The row check of a sink in a pipeline, and the name of that sink in messages."""

    sink: str
    row_check: RowCheck

    def check(self, rows: pa.Table, epoch: int) -> None:
        """Raises ``UserError`` with the sink, the row and the reason, before anything of the epoch is committed."""
        refused = self.row_check.first_refused(rows)
        if refused is not None:
            at, reason = refused
            raise UserError(
                f"{self.sink} cannot take a row of epoch {epoch}: {reason} (in row {row_text(rows, at)}). Nothing of the epoch "
                "was committed: change or drop such rows before they are written, and start again"
            )


def check_rows(rows: pa.Table, checks: Iterable[SinkCheck], epoch: int) -> None:
    for check in checks:
        check.check(rows, epoch)


def row_text(rows: pa.Table, at: int) -> str:
    """A row for messages, also if Python cannot represent some of its values."""
    return short({name: value_of(rows.column(name), at) for name in rows.column_names})


def value_of(column: pa.Array | pa.ChunkedArray, at: int) -> object:
    """One value, or a text for it if Python cannot represent it, such as a time after the year 9999."""
    try:
        return column[at].as_py()
    except (ValueError, OverflowError, TypeError, KeyError):
        if not pa.types.is_temporal(column.type):
            return f"<{column.type}>"
        return str(column[at : at + 1].cast(pa.int32() if column.type.bit_width == 32 else pa.int64())[0])
