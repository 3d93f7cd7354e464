"""What each key group had to do lately, as the reports of tasks tell."""

from collections.abc import Iterable

import msgspec
import numpy as np

HALF_LIFE = 16
"""After so many epochs with rows, rows count half."""
_GROUPS, _ROWS = np.dtype("<u2"), np.dtype("<u4")


class GroupRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of a task by key group: of those key groups that had some, as arrays of equal length."""

    groups: bytes = b""
    rows: bytes = b""

    @classmethod
    def of(cls, groups: np.ndarray, rows: np.ndarray) -> "GroupRows":
        """Requires: no key group is named twice."""
        most = np.iinfo(_ROWS).max
        return cls(groups.astype(_GROUPS).tobytes(), np.minimum(rows, most).astype(_ROWS).tobytes())

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.frombuffer(self.groups, _GROUPS), np.frombuffer(self.rows, _ROWS)


class MeasuredLoad:
    """Rows per key group of each operator. The last epochs count most."""

    def __init__(self, key_groups: int) -> None:
        self._key_groups = key_groups
        self._rows: dict[str, np.ndarray] = {}

    def add(self, operator: str, measured: Iterable[GroupRows]) -> None:
        """What the tasks of an epoch had. An epoch without rows changes nothing."""
        total = np.zeros(self._key_groups)
        for each in measured:
            groups, rows = each.arrays()
            np.add.at(total, groups, rows)
        if total.any():
            before = self._rows.get(operator)
            self._rows[operator] = total if before is None else before * 0.5 ** (1 / HALF_LIFE) + total

    def by_operator(self) -> dict[str, np.ndarray]:
        """Operator → what each key group counts, of operators that had rows."""
        return dict(self._rows)
