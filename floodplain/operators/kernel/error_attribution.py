"""Whose fault an error is that came out of a user's function: only the user's own are reported, or kept, as such."""

import sys
from types import FrameType
from typing import Final

from floodplain.errors import BadInput, FloodplainError, MergeUnavailable, UserError
from floodplain.lossless import UNFIT

_REFUSED: Final = (*UNFIT, NotImplementedError)
"""What we raise for what a user gave, beside errors of our own kinds: for values that do not fit, and methods that lack."""
_LIBRARIES: Final = {*sys.stdlib_module_names, "numpy", "pyarrow"}
"""What both sides call: an error in there is that of the caller."""


def is_users_fault(error: Exception) -> bool:
    """Whether an error that came out of a user's function is of its own making: raised in its code, or by us because of what it
    gave. Not a state that could not be read, and not a defect of ours."""
    if isinstance(error, FloodplainError):
        return isinstance(error, BadInput | MergeUnavailable | UserError)
    return isinstance(error, _REFUSED) or not _raised_by_us(error)


def _raised_by_us(error: Exception) -> bool:
    trace, last = error.__traceback__, None
    while trace is not None:
        if _package(trace.tb_frame) not in _LIBRARIES:
            last = trace.tb_frame
        trace = trace.tb_next
    # Who asks for an attribute or a column that is not there is not who looks it up.
    return last is not None and _package(last) == "floodplain" and last.f_code.co_name not in ("__getattr__", "__getitem__")


def _package(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    # Benchmarks use the package as any user does.
    return "" if name.startswith("floodplain.bench") else name.partition(".")[0]
