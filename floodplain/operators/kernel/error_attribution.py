"""Attributes an error in a process function to the user or to Floodplain: only user errors become dead letters."""

import sys
from types import FrameType
from typing import Final

from floodplain.errors import BadInput, FloodplainError, MergeUnavailable, UserError
from floodplain.lossless import UNFIT

_REFUSED: Final = (*UNFIT, NotImplementedError)
"""Built-in errors that Floodplain raises for invalid user input: values that do not fit a type, and missing methods."""
_LIBRARIES: Final = {*sys.stdlib_module_names, "numpy", "pyarrow"}
"""Libraries that both sides call: an error in one is attributed to its caller."""


def is_users_fault(error: Exception) -> bool:
    """Whether an error in a process function is the user's: raised in the user's code, or by Floodplain for an invalid argument.
    A state that cannot be read and a defect in Floodplain are not."""
    if isinstance(error, FloodplainError):
        return isinstance(error, BadInput | MergeUnavailable | UserError)
    return isinstance(error, _REFUSED) or not _raised_by_us(error)


def _raised_by_us(error: Exception) -> bool:
    trace, last = error.__traceback__, None
    while trace is not None:
        if _package(trace.tb_frame) not in _LIBRARIES:
            last = trace.tb_frame
        trace = trace.tb_next
    # A missing attribute or column is the fault of who asks for it, not of __getattr__.
    return last is not None and _package(last) == "floodplain" and last.f_code.co_name not in ("__getattr__", "__getitem__")


def _package(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    # Benchmarks use the package as any user does.
    return "" if name.startswith("floodplain.bench") else name.partition(".")[0]
