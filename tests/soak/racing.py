"""Several at once: writers that were paused past their lease, racing writers, compactors and collectors, and histories of all."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

import hypothesis
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from floodplain.errors import Conflict
from floodplain.store.store import Store
from floodplain.tiers.blobs import Blobs
from floodplain.versions.log import lease, replay
from tests.faults import At, FaultyBlobs, operations
from tests.soak import scenes
from tests.soak.outcome import Trial
from tests.store import racers, test_interleaved, test_model, test_races
from tests.store.scene import Scene
from tests.versions import test_simulation

ACTS: tuple[Callable[[Scene, Blobs], None], ...] = test_interleaved.STEPS[:4]


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations of an actor come in the same order every time."""
    with mock.patch.object(replay, "_fetched", lambda blobs, positions: ((p, replay.edit_at(blobs, p)) for p in positions)):
        yield


def pause(trial: Trial) -> None:
    """A process stands still before one of its operations, until its lease is over and others have gone on without it."""
    scene, blobs = scenes.any_scene(trial)
    act, told = trial.rng.choice(ACTS), [scenes.FIRST]
    with one_thread():
        ops = operations(blobs, lambda on: act(scene, on))
        op = trial.rng.choice(ops)
        trial.note(f"{act.__name__} paused before operation {op.index} of {len(ops)}, {op.method} {op.name}")
        plan = At(op.index, "before", lambda: _others_go_on(trial, scene, blobs, told) if trial.faulty else None)
        with suppress(Conflict) if trial.faulty else ExitStack():
            act(scene, FaultyBlobs(blobs, plan))
    newest = scenes.compare(trial, scene, blobs, told)
    writer = scene.take(blobs)
    trial.require(scene.commit(writer) == newest + 1, "the next epoch is not the one after the newest")
    writer.collect_garbage()
    scenes.compare(trial, scene, blobs, told)
    scene.check_clean(blobs)


def _others_go_on(trial: Trial, scene: Scene, blobs: Blobs, told: list[int]) -> None:
    scene.clock.advance_ms(scene.settings.lease_ms + trial.rng.randrange(1, 10**9))
    writer = scenes.take(scene, blobs, "other")
    for _ in range(trial.rng.randint(1, 3)):
        told.append(scene.commit(writer))
        if trial.rng.random() < 0.5:
            list(writer.store.compact(full=True))
        if trial.rng.random() < 0.5:
            writer.collect_garbage()


def simulate(trial: Trial) -> None:
    """Writers, restorers, compactors, collectors, readers and taggers under one random schedule, some of which crash."""
    seed, crashes = trial.rng.randrange(10**9), trial.rng.choice((0.0, 0.4)) if trial.faulty else 0.0
    trial.note(f"schedule {seed}, crashes {crashes}")
    with one_thread():
        test_simulation.run(seed, crashes)
    trial.require(True, "every manifest holds each of its epochs once")


def model(trial: Trial) -> None:
    """Random histories of a real store against dictionaries: epochs, take-overs, compactions, collections, rollbacks, changed
    tables. A control writes and reads only."""
    seed = trial.rng.randrange(10**9)
    trial.note(f"histories of seed {seed}")
    chosen = settings(test_model.chosen(2, 25, derandomize=False), phases=[Phase.generate], print_blob=False)
    if trial.faulty:
        machine = type("Machine", (test_model.StoreMachine,), {})
        run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=chosen)
    else:
        hypothesis.seed(seed)(chosen(hypothesis.given(epochs=test_model.epochs)(_only_written)))()
    trial.require(True, "every retained epoch reads as the dictionaries")


def _only_written(epochs: list[object]) -> None:
    test_model.compacted_in_any_order("values", 3, 0, 1 << 18, epochs, [])  # type: ignore[arg-type]


def race_threads(trial: Trial) -> None:
    """Eight writers take the lease from each other without end, beside compactions and collections: the sum of what each was told
    is what the store holds."""
    racing = 8 if trial.faulty else 1
    stage = test_races.Stage(checkpoint_every=3)
    won: list[int] = []
    ended = threading.Event()
    seeds = [trial.rng.randrange(10**9) for _ in range(racing + 1)]
    trial.note(f"{racing} writers")

    def write(number: int) -> None:
        rng, store = random.Random(seeds[number]), stage.open()
        for _ in range(6):
            with suppress(Conflict):
                writer = lease_of(store, f"w{number}")
                for _ in range(rng.randint(1, 3)):
                    epoch = writer.epoch()
                    epoch.merge("t", test_races.one(user="sum", n=1))
                    epoch.put("t", test_races.one(user=f"e{epoch.number}", n=epoch.number, who=f"w{number}"))
                    epoch.commit()
                    won.append(epoch.number)

    def keep_house() -> None:
        store = stage.open()
        while not ended.is_set():
            list(store.compact(full=True))
            with suppress(Conflict):
                store.collect_garbage()

    def lease_of(store: Store, name: str) -> test_races.Writer:
        return test_races.Writer(store, lease.take(store.history, name, force=True))

    _run_all([lambda number=number: write(number) for number in range(racing)], keep_house, ended)
    rows = {row["user"]: row["n"] for row in stage.contents()}
    trial.compare("epochs won", Counter(range(1, len(won) + 1)), Counter(won))
    trial.compare("merged", Counter({"sum": len(won)}), Counter({"sum": rows.pop("sum")}))
    trial.compare("rows", Counter(won), Counter(rows.values()))


def _run_all(writers: list[Callable[[], None]], beside: Callable[[], None], ended: threading.Event) -> None:
    """Raises what any of them raised."""
    errors: list[BaseException] = []

    def caught(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(act,), daemon=True) for act in writers]
    other = threading.Thread(target=caught, args=(beside,), daemon=True)
    for thread in (*threads, other):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    other.join()
    if errors:
        raise errors[0]


def race_processes(trial: Trial) -> None:
    """Real processes on one folder: one adds epochs or several fight for the lease, while this one compacts and collects."""
    store = test_races.create(trial.folder / "state")
    path = trial.folder / "state"
    if trial.rng.random() < 0.5:
        count = trial.rng.randint(10, 25)
        process = test_races.start("add", path, "other", count)
        while process.poll() is None and trial.faulty:
            list(store.compact(full=trial.rng.random() < 0.3, step_bytes=20_000))
            store.collect_garbage()
        told = {"other": test_races.finish(process)}
        expected = Counter({**{f"u{key}": count for key in range(20)}, f"gone{count - 1}": count - 1})
    else:
        names = [f"racer{number}" for number in range(3 if trial.faulty else 1)]
        processes = [test_races.start("grab", path, name, 4) for name in names]
        told = {name: test_races.finish(process) for name, process in zip(names, processes, strict=True)}
        total = sum(map(len, told.values()))
        expected = Counter({"sum": total, "last": total})
    trial.note(f"{ {name: len(epochs) for name, epochs in told.items()} } epochs told")
    newest = Store.open(path, settings=racers.SETTINGS)
    rows = newest.snapshot().table("t").to_arrow().to_pylist()
    epochs = Counter(epoch for epochs in told.values() for epoch in epochs)
    trial.compare("epochs", Counter(range(1, newest.head.epoch + 1)), epochs)
    trial.compare("rows", expected, Counter({row["user"]: row["n"] for row in rows}))
    trial.require(newest.verify().good, "verify finds damage")
