"""The contract of a sink: what the driver calls, and how a sink reads what the tasks staged."""

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
    and ``close`` at the end. After a crash the last committed epoch is published again unless the log says that it was: a sink
    that can tell skips it. A driver that was paused and superseded may still be inside a call: a sink must let at most one of
    two take effect.
    """

    @property
    def kind(self) -> str:
        """What it is called in plans: ``parquet``."""
        return type(self).__name__.removesuffix("Sink").lower()

    @property
    def target(self) -> str:
        """Where it writes to, for people to read: a path or a topic, and nothing that is secret."""
        return ""

    def check(self, schema: pa.Schema) -> None:  # noqa: ARG002
        """Refuse rows of this schema that could not be published. Called first, before the state or any sink is written to, and
        writes nothing itself."""
        return

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:  # noqa: ARG002
        """Connect, and refuse before anything runs what could not be published later.

        ``app`` names this output of this state for ever (``[a-z0-9_-]``): what the sink marks with it, it finds again.
        ``committed`` is the last epoch in the state; a sink that has a later one of this ``app`` must refuse, or it would take
        new epochs for repeated ones. ``schema`` is that of the output.
        """
        return

    def row_check(self, schema: pa.Schema) -> RowCheck | None:  # noqa: ARG002
        """What tasks check on rows of this schema, before their epoch is committed; None if all rows can be published.

        Called after ``prepare``.
        """
        return None

    @abstractmethod
    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        """Make the epoch's rows visible. ``staged`` names Parquet files in ``blobs``; they may be gone after the return.

        All of them have just been checked, and what is read through ``blobs`` are the bytes that were. Who goes another way to a
        file checks what it finds there with ``check_staged``.
        """

    def close(self) -> None:
        """Release connections. Nothing is published after it."""


def ahead(where: str, published: int, committed: int) -> BadInput:
    return BadInput(
        f"{where} has epoch {published} of this state, which is at epoch {committed}: the state was rolled back after that was "
        "published; write to another place, or go on from a branch of the state"
    )


def as_flag(option: str, value: bool | str) -> bool:
    """An option that is on or off; Spark's are often texts."""
    flag = {"true": True, "false": False}.get(str(value).lower())
    if flag is None:
        raise BadInput(f"{option}={value!r} is neither true nor false: use True or False")
    return flag


def required(module: str, extra: str) -> Any:
    """A package that only some sinks need."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise BadInput(f"this sink needs the package {module}: install floodplain[{extra}]") from error
