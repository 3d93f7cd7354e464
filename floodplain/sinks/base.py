"""The contract of a sink: the calls that the driver makes, and in which order."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput
from floodplain.sinks.row_checks import RowCheck
from floodplain.tiers.blobs import Blobs


class Sink(ABC):
    """Publishes the staged output of each epoch once the epoch is committed.

    The driver calls ``check`` and ``prepare`` once, then ``publish`` for one epoch after the other, all of it under the lease,
    and ``close`` at the end. After a crash the last committed epoch is published again, unless the log records that it was
    published; a sink that knows it to be published skips it. A driver that was paused and then fenced may still be inside a
    call: of two drivers that publish the same epoch, a sink must let at most one take effect.
    """

    replaceable = False
    """Whether another object of the class may take its place while a query runs. Else this one goes on."""

    @property
    def kind(self) -> str:
        """Its name in ``explain``: ``parquet``."""
        return type(self).__name__.removesuffix("Sink").lower()

    @property
    def target(self) -> str:
        """Where it writes to, for ``explain`` and messages: a path or a topic, without credentials."""
        return ""

    def check(self, schema: pa.Schema) -> None:  # noqa: ARG002
        """Refuse a schema whose rows could not be published. Called first, before the state or any sink is written to; it must
        write nothing itself."""
        return

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:  # noqa: ARG002
        """Connect, and refuse before the first epoch anything that could not be published later.

        ``app`` identifies this output of this state, and never changes (``[a-z0-9_-]``): a sink marks with it what it publishes.
        ``committed`` is the last epoch in the state; a sink that has a later epoch of this ``app`` must refuse, or it would take
        new epochs for replays. ``schema`` is that of the output.
        """
        return

    def row_check(self, schema: pa.Schema) -> RowCheck | None:  # noqa: ARG002
        """The check that tasks run on rows of this schema before their epoch is committed; None if all rows can be published.

        Called after ``prepare``.
        """
        return None

    @abstractmethod
    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        """Make the epoch's rows visible. ``staged`` names Parquet files in ``blobs``; they may be deleted once this returns.

        Reads through ``blobs`` return verified bytes. A sink that accesses a file in another way, such as by a link, must verify
        it with ``check_staged``.
        """

    def close(self) -> None:
        """Release connections. Nothing is published after it."""


def ahead_of_state(where: str, published: int, committed: int) -> BadInput:
    """The refusal of ``prepare`` for a target that has a later epoch than the state."""
    return BadInput(
        f"{where} has epoch {published} of this state, which is at epoch {committed}: the state was rolled back after that epoch "
        "was published; write to another target, or continue from a branch of the state"
    )


def as_flag(option: str, value: bool | str) -> bool:
    """A boolean option, which may also be text, as is common in Spark."""
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise BadInput(f"{option}={value!r} is neither true nor false: use True or False")
    return flag


def required(module: str, extra: str) -> Any:
    """Imports a package that only some sinks need. Raises ``BadInput`` with the extra to install if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise BadInput(f"this sink needs the package {module}: install floodplain[{extra}]") from error
