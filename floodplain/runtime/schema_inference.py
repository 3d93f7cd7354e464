"""A pipeline prepared on a state that is in memory and empty, to see what its outputs are. Nothing runs."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.metrics import Counters
from floodplain.plan.nodes import Plan
from floodplain.runtime.engine import Engine, StateLocation
from floodplain.runtime.epoch_runner import EpochRunner
from floodplain.settings import StoreSettings
from floodplain.sinks.memory import MemorySink
from floodplain.store.store import Store
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.versions.log.history import History


def dry_schemas(plan: Plan, engine: Engine, empty: Mapping[str, Any]) -> dict[str, pa.Schema]:
    """The columns of what each outlet would get. ``empty`` has the columns of each input and no rows.

    Raises what ``start`` would raise, but for what the sinks and the state at hand would refuse.
    """
    dry = copy(plan)
    dry.outlets = tuple(replace(outlet, sink=MemorySink()) for outlet in plan.outlets)
    settings, where = StoreSettings(key_groups=1), "memory://dry"
    counters = Counters()
    blobs = MemoryBlobs(where, counters, Space())
    history = History.create(blobs, settings.key_groups, settings=settings, clock=ManualClock(0), randomness=SeededRandomness(7))
    store = Store(history, counters)
    epochs = EpochRunner(StateLocation(store, store.writer("dry"), where, settings, {}, blobs), dry, engine, 1)
    epochs.prepare(empty)
    return {outlet.name: epochs.bound.schema_of(outlet) for outlet in dry.outlets}
