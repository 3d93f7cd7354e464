"""Damage to staged output, and sinks that fail: what is published equals the rows that a database computes, once each."""

import json
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from floodplain.clock import SystemRandomness
from floodplain.metrics import Counters
from floodplain.sinks.base import Sink
from floodplain.testing.faults import CrashPoint
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.directory import DirectoryBlobs
from floodplain.versions.records.edit import SourcePosition
from tests.runtime.test_staged_damage import Summed
from tests.sinks.staged_damage import GIVEN, Driver, Named, World, damages, left_unpublished, worlds
from tests.sinks.staging import memory_blobs
from tests.soak.outcome import Bag, Trial

SINKS = ("parquet", "parted", "delta", "memory", "kafka")
NAMED = "select user, 'kind' || (amount % 3) as kind, amount * 7919 as n from given"
SUMMED = f"select kind, sum(n)::bigint as n from ({NAMED}) group by kind"


def computed(query: str, given: pa.Table) -> Bag:
    """What a database makes of the same events."""
    with duckdb.connect() as database:
        database.register("given", given)
        return Counter(database.execute(query).fetchall())


def any_blobs(trial: Trial) -> Blobs:
    if trial.rng.random() < 0.5:
        return memory_blobs()
    return DirectoryBlobs(trial.folder / "state", sync=False, randomness=SystemRandomness(), counters=Counters())


def published(name: str, world: World, folder: Path) -> Bag:
    """What a reader of the sink finds."""
    if not world.seen():
        return Counter()
    if name == "kafka":
        sent = [json.loads(value) for value in world.sink.client.sent]  # type: ignore[attr-defined]
        return Counter((row["user"], row["kind"], row["n"]) for row in sent if isinstance(row, dict))  # the other is the marker
    if name == "memory":
        return _bag(world.sink.table())  # type: ignore[attr-defined]
    if name == "delta":
        return _bag(DeltaTable(folder / "delta").to_pyarrow_table())
    with duckdb.connect() as database:
        found = database.execute(
            f"select user, kind, n from read_parquet('{folder / name}/**/*.parquet', hive_partitioning=true)"
        )
        return Counter(found.fetchall())


def _bag(rows: pa.Table) -> "Counter[Hashable]":
    return Counter((row["user"], row["kind"], row["n"]) for row in rows.to_pylist())


def damage_before_publishing(trial: Trial) -> None:
    """Between the commit of an epoch and its publishing; by the same driver, or by one that takes over."""
    name = trial.rng.choice(SINKS)
    blobs, world = any_blobs(trial), worlds(trial.folder)[name]
    driver = left_unpublished(blobs, world.sink)
    files = {output: blobs.get(output).to_pybytes() for output in driver.store.head.outputs}
    what, changed = _damaged(trial, files)
    publish: Callable[[], Any] = driver.epochs.publisher.publish
    if trial.rng.random() < 0.3:
        publish = lambda: Driver(blobs, world.sink).prepare()  # noqa: E731
    if trial.faulty:
        trial.note(f"{name}: {what} of {list(changed)}")
        _put(blobs, changed)
        with trial.may_refuse(*changed):
            publish()
        trial.require(trial.refused, "published as if nothing were wrong")
        trial.compare("rows that came through", Counter(), published(name, world, trial.folder))
        _put(blobs, {output: files[output] for output in changed})
    publish()
    trial.compare("rows published once the file is whole", computed(NAMED, GIVEN), published(name, world, trial.folder))


def _damaged(trial: Trial, files: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    if trial.rng.random() < 0.1:
        first, second = files
        return "swapped", {first: files[second], second: files[first]}
    output = trial.rng.choice(sorted(files))
    what, data = trial.rng.choice(list(damages(files[output], trial.rng.randrange(10**6))))
    return what, {output: data}


def _put(blobs: Blobs, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        blobs.put(name, data)


def damage_between_operators(trial: Trial) -> None:
    """Rows that one operator has staged and the next one reads."""
    rng = trial.rng

    def build(stream: Any) -> Any:
        named = stream.key_by("user").process(Named(), name="named")
        return named.key_by("kind").process(Summed(), name="summed").write("memory")

    kit = PipelineKit(build, rows="user string, amount long")
    kit.epoch(GIVEN)
    staged = {step: name.removeprefix("create ") for step, name in enumerate(kit.steps.taken) if _is_staged(name)}
    named, (part,) = sorted(staged.values()), rng.sample(range(10**6), 1)

    def damage() -> None:
        blobs = kit.store.history.blobs
        output = named[part % len(named)]
        which = list(damages(blobs.get(output).to_pybytes(), part))
        what, data = which[part % len(which)]
        trial.note(f"{what} of {output}")
        if trial.faulty:
            blobs.put(output, data)

    kit.wipe()
    kit.restart()
    kit.crash_at(CrashPoint(max(staged), "after"), damage)
    with trial.may_refuse(*named):
        rows = kit.epoch(GIVEN)["output"]
        trial.compare("rows", computed(SUMMED, GIVEN), Counter((row["kind"], row["n"]) for row in rows))
    if trial.refused:
        trial.require(not kit.store.head.epoch and not kit.sinks["output"].epochs, "something of it was committed or published")


def _is_staged(step: str) -> bool:
    return step.startswith("create ") and "-named-main-" in step


class Failing(Sink):
    """A sink that fails as told: before it has done anything, when it has published a part, or when all is done."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner
        self.fails = ""

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self.inner.prepare(app, committed, schema)

    def publish(self, epoch: int, staged: Any, blobs: Blobs, schema: pa.Schema) -> None:
        fails, self.fails = self.fails, ""
        if fails in ("", "after"):
            self.inner.publish(epoch, staged, blobs, schema)
        elif fails == "half way":
            self.inner.publish(epoch, sorted(staged)[:1], blobs, schema)
        if fails:
            raise InterruptedError(fails)


def fail_to_publish(trial: Trial) -> None:
    """Epochs whose publishing fails at random and is tried again by the same driver or by the next one."""
    rng = trial.rng
    name = rng.choice(["parquet", "parted", "delta", "memory"])
    blobs, world = any_blobs(trial), worlds(trial.folder)[name]
    sink = Failing(world.sink)
    driver = Driver(blobs, sink).prepare()
    given = []
    for batch in range(rng.randint(2, 5)):
        users = [f"user{rng.randrange(40)}" for _ in range(30)]
        given.append(pa.table({"user": users, "amount": [batch * 1000 + n for n in range(30)]}, schema=GIVEN.schema))
        ways = ["", "before", "after", *(["half way"] if name == "parquet" else [])]
        sink.fails = rng.choice(ways) if trial.faulty else ""
        act = partial(_batch, driver, given[-1], batch)
        trial.note(f"{name}, batch {batch}: {sink.fails or 'no'} failure")
        while act is not None:
            act, driver = _through(act, driver, blobs, sink, again=rng.random() < 0.5)
            sink.fails = rng.choice(ways) if act is not None and rng.random() < 0.3 else ""
    driver.epochs.publisher.publish()
    trial.compare("rows published", computed(NAMED, pa.concat_tables(given)), published(name, world, trial.folder))


def _batch(driver: Driver, rows: pa.Table, batch: int) -> None:
    driver.epochs.run({"": rows}, SourcePosition("q", batch, f"v1\n{{}}\n{batch}"), 1000, 0)


def _through(
    act: Callable[[], Any], driver: Driver, blobs: Blobs, sink: Sink, *, again: bool
) -> tuple[Callable[[], Any] | None, Driver]:
    """One try; what is to be tried next, and by which driver. What an epoch has staged stays to be published: no row is given
    again."""
    try:
        act()
    except InterruptedError:
        if again:
            return driver.epochs.publisher.publish, driver
        taking_over = Driver(blobs, sink)
        return taking_over.prepare, taking_over
    return None, driver
