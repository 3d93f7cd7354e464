"""Pipelines in the test kit whose driver dies at random steps: state and output equal what a database makes of the events."""

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa

from floodplain.errors import Fenced
from floodplain.settings import StoreSettings
from floodplain.testing.faults import CrashPoint
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, _play, _points
from tests.processes import Count
from tests.soak.outcome import Trial
from tests.testing.test_crashes import SCRIPTS

ROWS = "user string, amount long"
STATE = "select user, count(*), sum(amount)::bigint from given group by user"
OUTPUT = """
select user, sum(count(*)) over seen::bigint, sum(sum(amount)) over seen::bigint
from given group by user, epoch window seen as (partition by user order by epoch)
"""


def counted(stream: Any) -> Any:
    return stream.key_by("user").process(Count()).write("memory")


def crash(trial: Trial) -> None:
    """One to four crashes at random steps, of a script of counts, or of one with timers, dead letters or static input."""
    if trial.rng.random() < 0.5:
        _crash_counting(trial)
    else:
        _crash_script(trial)


def _settings(trial: Trial) -> StoreSettings:
    inline = trial.rng.choice((0, 64 << 10))
    return StoreSettings(key_groups=16, inline_bytes=inline, checkpoint_every=trial.rng.choice((2, 4, 64)))


def _points_of(trial: Trial, steps: int) -> list[CrashPoint]:
    if not trial.faulty:
        return []
    chosen = trial.rng.sample(range(steps), min(trial.rng.randint(1, 4), steps))
    return [CrashPoint(step, trial.rng.choice(("before", "after"))) for step in sorted(chosen)]


def _crash_counting(trial: Trial) -> None:
    rng = trial.rng
    kit = PipelineKit(counted, rows=ROWS, settings=_settings(trial))
    batches = [
        [{"user": f"u{rng.randrange(12)}", "amount": rng.randrange(-50, 50)} for _ in range(rng.randrange(1, 25))]
        for _ in range(rng.randint(2, 6))
    ]
    script = [KitEpoch(rows, slots=rng.choice((None, None, 1, 2, 3))) for rows in batches]
    parts = _play(kit, script, ())
    points = _points_of(trial, parts[-1].stop)
    trial.note(f"crashes at {[f'{point.when} {point.step}' for point in points]} of {parts[-1].stop} steps")
    _play(kit, script, points)
    given = pa.Table.from_pylist([{"epoch": epoch, **row} for epoch, rows in enumerate(batches) for row in rows])
    with duckdb.connect() as database:
        database.register("given", given)
        state, output = (Counter(database.execute(query).fetchall()) for query in (STATE, OUTPUT))
    found = [row for rows in kit.sinks["output"].epochs.values() for row in rows.to_pylist()]
    trial.compare("output", output, Counter((row["user"], row["n"], row["total"]) for row in found))
    trial.compare("state", state, Counter((row["user"], row["n"], row["total"]) for row in kit.state("count")))


def _crash_script(trial: Trial) -> None:
    """Held against the same script without a crash."""
    name = trial.rng.choice(sorted(SCRIPTS))
    build, columns, script = SCRIPTS[name]
    kit = PipelineKit(build, rows=columns, settings=_settings(trial))
    parts = _play(kit, script, ())
    untouched, steps = kit.outcome(), [point.step for part in parts for point in _points(kit, part)]
    points = [CrashPoint(steps[point.step], point.when) for point in _points_of(trial, len(steps))]
    trial.note(f"{name}: crashes at {[f'{point.when} {point.step}' for point in points]} of {parts[-1].stop} steps")
    _play(kit, script, points)
    outcome = kit.outcome()
    for what, bag in untouched.items():
        trial.compare(what, bag, outcome[what])


def take_over(trial: Trial) -> None:
    """Another driver takes the lease at a random step of an epoch: the one before publishes and commits nothing more, and what it
    was at is done once, by the other."""
    rng = trial.rng
    kit = PipelineKit(counted, rows=ROWS, settings=_settings(trial))
    batches = [[{"user": f"u{rng.randrange(9)}", "amount": rng.randrange(50)} for _ in range(9)] for _ in range(3)]
    parts = _play(kit, [KitEpoch(rows) for rows in batches], ())
    step = rng.randrange(parts[1].start, parts[-1].stop)
    trial.note(f"taken over before step {step}, {kit.steps.taken[step]}")
    kit.wipe()
    kit.restart()
    if trial.faulty:
        kit.crash_at(CrashPoint(step, "before"), lambda: kit.store.writer("other", force=True))
    for rows in batches:
        try:
            kit.epoch(rows)
        except Fenced as error:
            trial.require("superseded" in str(error), str(error))
            kit.restart()
    given = Counter[str]()
    for rows in batches:
        given.update(row["user"] for row in rows)
    trial.compare("rows counted", given, Counter({row["user"]: row["n"] for row in kit.state("count")}))
    newest: Counter[str] = Counter()
    for published in kit.sinks["output"].epochs.values():
        newest |= Counter({row["user"]: row["n"] for row in published.to_pylist()})
    trial.compare("rows published", given, newest)
