"""The store against the model: whatever is done in whatever order, every retained epoch reads as the model says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from floodplain.errors import Fenced, SnapshotExpired
from floodplain.settings import RetentionSettings
from floodplain.store.rows import merge_functions
from tests.store import world
from tests.store.machine import Op, Twins, check_table
from tests.store.model import JOIN_TEXT, ModelColumn, ModelTable

NAMES = tuple(sorted(world.zoo()))
WIDER = {pa.int16(): pa.int32(), pa.int32(): pa.int64(), pa.float32(): pa.float64(), pa.string(): pa.large_string()}
NEW_COLUMNS: tuple[dict[str, Any], ...] = (
    {"type": pa.int32(), "default": 4, "merge": "sum"},
    {"type": pa.string()},
    {"type": pa.int64(), "default": 1, "merge": "max", "ttl_ms": 40},
    {"type": pa.string(), "default": "x", "merge": JOIN_TEXT},
)

small = st.integers(0, 15)
which_table = st.integers(0, 1)
picks = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), small), min_size=1, max_size=4)
kinds = st.sampled_from(["put", "merge", "delete", "clear", "put", "merge"])
deltas = st.lists(st.tuples(which_table, kinds, picks, st.integers(0, 255)), min_size=1, max_size=3)
steps_ms = st.sampled_from([0, 1, 20, 45, 60, 110])
epochs = st.lists(st.tuples(deltas, st.integers(1, 3), steps_ms), min_size=1, max_size=4)
bands_bytes = st.sampled_from([1, 4000, 1 << 20])


@contextmanager
def without_user_merge(lacking: bool) -> Iterator[None]:
    """As in a process that does not have the user's code."""
    fold = merge_functions._registered.pop(JOIN_TEXT)
    if not lacking:
        merge_functions._registered[JOIN_TEXT] = fold
    try:
        yield
    finally:
        merge_functions._registered[JOIN_TEXT] = fold


class StoreMachine(RuleBasedStateMachine):
    twins: Twins | None = None

    @initialize(
        names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=2),
        tier=st.sampled_from(sorted(world.TIERS)),
        keys=st.sampled_from([1, 3, 8]),
        forged=st.sampled_from([0, 0, 1, 3, 6]),
        newest=st.integers(1, 4),
        key_groups=st.sampled_from([1, 4, 16]),
        chunk_bytes=st.sampled_from([1, 200, 1 << 20]),
        window_bytes=st.sampled_from([1, 3000, 32 << 20]),
        inline_bytes=st.sampled_from([0, 3000, 1 << 20]),
        checkpoint_every=st.sampled_from([2, 7, 64]),
    )
    def start(self, names: list[str], tier: str, keys: int, forged: int, newest: int, **choices: Any) -> None:
        retention = RetentionSettings(newest=newest, every_ms=((1000, 100),))
        self.twins = Twins(names, tier, world.settings(retention=retention, **choices), keys, forged)
        self.uid = 100

    # --- Writing

    @rule(epochs=epochs)
    def write(self, epochs: list[tuple[list[Op], int, int]]) -> None:
        for epoch in epochs:
            self.twins.write(*epoch)
        self.twins.check(self.twins.writer.store.snapshot())

    @rule(epochs=epochs)
    def write_more(self, epochs: list[tuple[list[Op], int, int]]) -> None:
        """Most of what happens to a store is this."""
        self.write(epochs)

    @rule(delta=deltas, which=small, force=st.booleans())
    def write_in_vain(self, delta: list[Op], which: int, force: bool) -> None:
        """An epoch that is given up, or that a writer begins before or after it is superseded."""
        twins = self.twins
        half = twins.half_written(twins.writer, delta)
        if which % 4 == 0:
            half._own.finish()
            return
        if which % 4 == 1 or not twins.fenced:
            twins.take_over(force=force)
        else:
            half = twins.half_written(twins.fenced[which % len(twins.fenced)], delta)
        with pytest.raises(Fenced):
            half.commit()
        twins.check(twins.writer.store.snapshot())

    # --- Maintenance

    @rule(full=st.booleans(), step_bytes=bands_bytes, lacking=st.booleans(), which=small)
    def compact(self, full: bool, step_bytes: int, lacking: bool, which: int) -> None:
        store = self.twins.store(which)
        with without_user_merge(lacking):
            list(store.compact(full=full, step_bytes=step_bytes))
        self.twins.check(store.snapshot())

    @precondition(lambda self: self.twins.epoch > 1)
    @rule(which=small, name=which_table, first=small, length=st.integers(2, 4), step_bytes=bands_bytes, at_once=st.booleans())
    def plan(self, which: int, name: int, first: int, length: int, step_bytes: int, at_once: bool) -> None:
        self.twins.plan(self.twins.store(which), self.twins.names[name], which, first, length, step_bytes)
        if at_once and self.twins.planned:
            self.carry_out(-1, False)

    @precondition(lambda self: self.twins.planned)
    @rule(which=small, lacking=st.booleans())
    def carry_out(self, which: int, lacking: bool) -> None:
        with without_user_merge(lacking):
            self.twins.carry_out(which)
        self.twins.check(self.twins.store(which).snapshot())

    @rule(which=small, as_writer=st.booleans())
    def collect(self, which: int, as_writer: bool) -> None:
        self.twins.collect(self.twins.store(which), as_writer=as_writer)

    @precondition(lambda self: self.twins.history)
    @rule(name=st.sampled_from(["x", "y"]), which=small, on=st.booleans())
    def tag(self, name: str, which: int, on: bool) -> None:
        twins = self.twins
        if on:
            twins.store(which).tag(name, twins.past(which))
            twins.tags[name] = twins.past(which)
        elif twins.tags.pop(name, None) is not None:
            twins.store(which).drop_tag(name)

    @precondition(lambda self: len(self.twins.history) > 1)
    @rule(which=small, store=small)
    def go_back(self, which: int, store: int) -> None:
        """Compactions that were planned before are carried out behind it, or turned away."""
        past = [epoch for epoch in sorted(self.twins.history) if epoch != self.twins.epoch]
        self.twins.go_back(past[which % len(past)])
        self.twins.check(self.twins.store(store).snapshot())

    # --- Changing definitions

    @rule(
        name=which_table,
        change=st.sampled_from(["add", "drop", "rename", "rename_key", "widen", "reorder", "expire", "expire_column"]),
        which=small,
    )
    def evolve(self, name: int, change: str, which: int) -> None:
        table = self.twins.tables[self.twins.names[name]]
        column = table.columns[which % len(table.columns)] if table.columns else None
        self.uid += 1
        if column is not None or change in ("add", "rename_key"):
            renames = getattr(self, f"_{change}")(table, column, which)
            self.twins.writer.define(table.schema(), renames=renames)
            view = self.twins.writer.store.snapshot().table(table.name)
            check_table(view, table, table.contents(self.twins.now_ms))

    def _add(self, table: ModelTable, column: ModelColumn, which: int) -> None:
        table.add(ModelColumn(self.uid, f"c{self.uid}", **NEW_COLUMNS[which % len(NEW_COLUMNS)]))

    def _drop(self, table: ModelTable, column: ModelColumn, which: int) -> None:
        table.drop(column.uid)

    def _rename(self, table: ModelTable, column: ModelColumn, which: int) -> dict[str, str]:
        table.change(column.uid, name=f"c{self.uid}")
        return {column.name: f"c{self.uid}"}

    def _rename_key(self, table: ModelTable, column: ModelColumn, which: int) -> dict[str, str]:
        old, new = list(table.keys)[which % len(table.keys)], f"k{self.uid}"
        table.keys = {new if key == old else key: type_ for key, type_ in table.keys.items()}
        return {old: new}

    def _widen(self, table: ModelTable, column: ModelColumn, which: int) -> None:
        table.change(column.uid, type=WIDER.get(column.type, column.type))

    def _reorder(self, table: ModelTable, column: ModelColumn, which: int) -> None:
        cut = which % len(table.columns)
        table.columns = table.columns[cut:] + table.columns[:cut]

    def _expire(self, table: ModelTable, column: ModelColumn, which: int) -> None:
        if table.shape != "time" and not table.ttl_ms:
            table.ttl_ms = 80

    def _expire_column(self, table: ModelTable, column: ModelColumn, which: int) -> None:
        table.change(column.uid, ttl_ms=column.ttl_ms or 40)

    # --- Reading

    @precondition(lambda self: self.twins.history)
    @rule(name=which_table, picked=picks, subs=st.booleans(), which=small, past=st.booleans(), later_ms=steps_ms)
    def look_up(self, name: int, picked: list[Any], subs: bool, which: int, past: bool, later_ms: int) -> None:
        twins, store = self.twins, self.twins.store(which)
        table, now_ms = twins.tables[twins.names[name]], None
        if past:
            seen = twins.history[twins.past(which)][table.name]
            view, table, contents = store.at(twins.past(which)).table(table.name), seen.table, seen.contents
        else:
            now_ms = twins.now_ms + later_ms
            view, contents = store.snapshot().table(table.name), table.contents(now_ms)
        wanted = [twins.entry(table, key, sub) for key, sub, _ in picked]
        twins.check_lookup(view, table, contents, wanted, subs=subs, now_ms=now_ms)

    @precondition(lambda self: self.twins.history)
    @rule(which=small, name=which_table, first=st.integers(1, 40), second=st.integers(1, 40))
    def travel(self, which: int, name: int, first: int, second: int) -> None:
        twins, store = self.twins, self.twins.store(which)
        if first <= twins.epoch and first not in twins.history:
            with pytest.raises(SnapshotExpired):
                store.at(first)
        twins.check_epoch(store, twins.past(first))
        older, newer = sorted((twins.past(first), twins.past(second)))
        twins.check_diff(store, twins.names[name], older, newer)

    @rule(name=which_table, bounds=st.tuples(small, small), which=small)
    def scan_a_part(self, name: int, bounds: tuple[int, int], which: int) -> None:
        twins, snapshot = self.twins, self.twins.store(which).snapshot()
        table = twins.tables[twins.names[name]]
        low, high = sorted(bound % twins.settings.key_groups for bound in bounds)
        twins.check_groups(snapshot.table(table.name), table, low, high + 1)
        if table.name == "timers":
            times = [*sorted(world.TIMES), 1 << 63]
            twins.check_times(snapshot.table("timers"), *(times[bound % len(times)] for bound in bounds))

    def teardown(self) -> None:
        if self.twins is not None:
            twins = self.twins
            twins.check_everything(world.open_store(twins.blobs, twins.clock, twins.settings))


def chosen(examples: int, steps: int = 50, *, derandomize: bool) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def test_any_history_reads_as_the_model_says() -> None:
    run_state_machine_as_test(StoreMachine, settings=chosen(80, 20, derandomize=True))


whole_rows = st.tuples(st.sampled_from([("put", 0), ("merge", 255), ("merge", 255)]), st.integers(0, 2), small)
few_rows = st.lists(whole_rows, min_size=1, max_size=3).map(
    lambda rows: [(0, op, [(key, 0, seed)], mask) for (op, mask), key, seed in rows]
)
any_epochs = st.lists(st.tuples(deltas, st.integers(1, 3), steps_ms), min_size=3, max_size=7)
few_epochs = st.lists(st.tuples(few_rows, st.integers(1, 3), st.sampled_from([0, 20, 45, 60])), min_size=3, max_size=7)
compactions = st.lists(st.tuples(small, small, st.integers(1, 3), bands_bytes, st.booleans()), min_size=1, max_size=4)


ANY_ORDER = {
    "name": st.sampled_from([*NAMES, "ending", "ending", "ending"]),
    "keys": st.sampled_from([1, 3]),
    "forged": st.sampled_from([0, 3]),
    "window_bytes": st.sampled_from([1, 32 << 20]),
    "epochs": any_epochs | few_epochs,
    "compactions": compactions,
}


def compacted_in_any_order(
    name: str, keys: int, forged: int, window_bytes: int, epochs: list[tuple[list[Op], int, int]], compactions: list[Any]
) -> None:
    """A few epochs of few keys, then merges of neighbours in any order: what is seen stays the same."""
    twins = Twins([name], "mapped", world.settings(window_bytes=window_bytes), keys, forged)
    for epoch in epochs:
        twins.write(*epoch)
    twins.check(twins.store(0).snapshot())
    for which, first, length, step_bytes, lacking in compactions:
        twins.plan(twins.store(0), name, which, first, length, step_bytes)
        with without_user_merge(lacking):
            if twins.planned:
                assert twins.carry_out(0)
        twins.check(twins.store(0).snapshot())
    list(twins.store(0).compact(full=True))
    twins.check(twins.store(0).snapshot())


def test_compaction_in_any_order_changes_nothing() -> None:
    chosen(150, derandomize=True)(given(**ANY_ORDER)(compacted_in_any_order))()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_histories_read_as_the_model_says() -> None:
    rounds = int(os.environ.get("FLOODPLAIN_SOAK_ROUNDS", "20"))
    for round_ in range(1, rounds + 1):
        run_state_machine_as_test(StoreMachine, settings=chosen(100, 50, derandomize=False))
        chosen(1000, derandomize=False)(given(**ANY_ORDER)(compacted_in_any_order))()
        print(f"model: {100 * round_} histories of {100 * rounds}, {1000 * round_} of {1000 * rounds} compactions", flush=True)
