"""From options to what is to be read: the epoch, the variable, the partitions. Decided once, when a DataFrame is made."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from floodplain.errors import BadInput, StoreNotFound
from floodplain.settings import StoreSettings
from floodplain.spark.state_reader.batches import batch_of, epoch_of, read_epoch
from floodplain.spark.state_reader.columns import Shape
from floodplain.spark.state_reader.conditions import invalid_value, no_batch, no_partition, no_schema, unspecified
from floodplain.spark.state_reader.options import (
    JOIN_SIDE,
    STATE_VARIABLE,
    TIMERS,
    StateOptions,
    state_options,
)
from floodplain.spark.state_reader.variables import Operator, Variable, operators_of
from floodplain.store.store import Store
from floodplain.tiers.open import folder_of
from floodplain.versions.records.assignment import groups_of
from floodplain.versions.records.edit import GroupRanges
from floodplain.versions.records.manifest import Manifest

_NAMES_SHOWN = 20
_SETTINGS = StoreSettings(pin_ms=120_000)
"""Tasks renew the pins of their read. Nobody knows which task is the last, so pins are left to run out: the sooner the better."""


@dataclass(frozen=True)
class StateRead:
    """A read that is fully decided: whatever is committed meanwhile, it gives the same rows."""

    location: str
    access: Mapping[str, str]
    shape: Shape
    epoch: int
    first_epoch: int
    """Of changes, that of the first batch; else the same as ``epoch``."""
    slots: tuple[tuple[int, GroupRanges], ...]
    """The partitions that are read, with their key groups."""

    @property
    def epochs(self) -> list[int]:
        """All that are read. Changes of an epoch are seen against the one before it."""
        first = self.first_epoch - 1 if self.shape.changes else self.epoch
        return [epoch for epoch in range(first, self.epoch + 1) if epoch]


@contextmanager
def opened(location: str, access: Mapping[str, str]) -> Iterator[Store]:
    try:
        store = Store.open(location, options=access, settings=_SETTINGS)
    except StoreNotFound as missing:
        raise _not_ours(location) from missing
    try:
        yield store
    finally:
        store.close()


def absolute(location: str) -> str:
    """A location that means the same on every machine and in every folder."""
    folder = folder_of(location)
    return location if folder is None else str(folder)


def planned(options: Mapping[str, str]) -> StateRead:
    """Raises what Spark's reader raises for options that are wrong, or not of this state."""
    what = state_options(options)
    location = absolute(what.path)
    with opened(location, what.access) as store:
        epoch = read_epoch(store, location, what.newest)
        what.check_batches(batch_of(epoch))
        first_epoch = epoch_of(what.change_start) if what.changes else epoch
        if what.changes:
            _check_retained(store.head, location, first_epoch, epoch)
        manifest = store.history.at(epoch)
    operator = _operator(manifest, what.operator, location)
    shape = Shape(_variable(operator, what), what.flatten, what.changes, joined=what.side != "none")
    slots = tuple(enumerate(partitions_of(manifest, operator.name)))
    if what.partition is not None and what.partition >= len(slots):
        raise no_partition(what.partition, what.operator, location)
    chosen = slots if what.partition is None else (slots[what.partition],)
    return StateRead(location, what.access, shape, epoch, first_epoch, chosen)


def partitions_of(manifest: Manifest, operator: str) -> tuple[GroupRanges, ...]:
    """The key groups of each slot of an operator; of a state that no query has written, all of them as one."""
    assignment = manifest.assignment_of(operator)
    return (((0, manifest.key_groups),),) if assignment is None else groups_of(assignment, manifest.key_groups)


def _not_ours(location: str) -> Exception:
    folder = folder_of(location)
    if folder is not None and (folder / "offsets").exists() and (folder / "metadata").is_file():
        return BadInput(f"{location} is a checkpoint of a query of Spark itself: read it with Spark's own format")
    return no_batch(location, "there is no state of Floodplain: start the query that makes it, or check the path")


def _check_retained(head: Manifest, location: str, first: int, last: int) -> None:
    for epoch in range(max(first - 1, 1), last + 1):
        if head.mark(epoch) is None:
            readable = ", ".join(str(batch_of(mark.epoch)) for mark in head.epochs)
            why = f"the changes from batch {batch_of(first)} on need batch {batch_of(epoch)}, which is no longer retained"
            raise no_batch(location, f"{why}; those that can be read: {readable}")


def _operator(manifest: Manifest, number: int, location: str) -> Operator:
    operators = operators_of(manifest)
    if number >= len(operators):
        known = ", ".join(f"{operator.number} ({operator.name})" for operator in operators) or "none"
        raise no_schema(location, f"there is no operator {number}; there are: {known}")
    return operators[number]


def _variable(operator: Operator, what: StateOptions) -> Variable:
    if what.side != "none":
        return _join_side(operator, what.side)
    if what.timers:
        return _timers(operator)
    if what.variable is None:
        if operator.whole is None:
            raise unspecified(STATE_VARIABLE, f" {_there_are(operator)}")
        return operator.whole
    variable = operator.variable(what.variable) or _by_table(operator, what.variable)
    if variable is None:
        of = "the transformWithState operator" if operator.processor is not None else f"operator {operator.name}"
        raise invalid_value(STATE_VARIABLE, f"State variable {what.variable} is not defined for {of}. {_there_are(operator)}")
    if what.changes and variable.kind == "timer":
        raise invalid_value(STATE_VARIABLE, f"{what.variable} has no change feed: timers are read as they are at a batch")
    return variable


def _join_side(operator: Operator, side: str) -> Variable:
    variable = operator.variable(side)
    if variable is None or variable.kind != "list":
        raise invalid_value(JOIN_SIDE, f"operator {operator.name} keeps no rows of a {side} side. {_there_are(operator)}")
    return variable


def _timers(operator: Operator) -> Variable:
    if operator.timers is not None:
        return operator.timers
    if operator.processor is not None:
        raise invalid_value(TIMERS, "Registered timers are not available in TimeMode=None.")
    raise invalid_value(TIMERS, f"operator {operator.name} has no timers")


def _by_table(operator: Operator, name: str) -> Variable | None:
    """A table, by its name. Of one with several variables all values come side by side."""
    if operator.whole is not None and name == operator.whole.table:
        return operator.whole
    return next((variable for variable in operator.variables if variable.table == name and not variable.shared), None)


def _there_are(operator: Operator) -> str:
    names = [variable.name for variable in operator.variables]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"There are: {', '.join(names[:_NAMES_SHOWN])}{more}." if names else "There are none."
