import shutil

import pytest

from floodplain.settings import RetentionSettings, StoreSettings
from floodplain.store.store import Store
from tests.cli.stores import SETTINGS, add_epochs, flip, newest, run, run_json


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    add_epochs(path, 4)
    return path


def test_a_whole_store_is_good(store):
    verdict = run_json("verify", store)
    assert verdict["good"] and not verdict["damages"]
    assert (verdict["epochs"], verdict["runs"], verdict["last_good_epoch"]) == (4, 4, 4)
    assert verdict["size_bytes"] > sum(file.stat().st_size for file in (store / "log").iterdir())
    shown = run("verify", store)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("good: ")


def test_a_flipped_bit_anywhere_in_a_run_is_found_and_named(store):
    file = newest(store / "runs")
    whole = file.read_bytes()
    for at in range(0, len(whole), 97):
        flip(file, at)
        verdict = run_json("verify", store, code=1)
        (damage,) = verdict["damages"]
        assert damage["file"] == f"runs/{file.name}"
        assert damage["expected"] != damage["found"]
        assert (damage["last_good_epoch"], damage["epochs"]) == (3, [4])
        assert verdict["last_good_epoch"] == 3
        file.write_bytes(whole)
    assert run_json("verify", store)["good"]


def test_the_text_names_file_expected_found_and_last_good_epoch(store):
    file = newest(store / "runs")
    flip(file, 10)
    shown = run("verify", store)
    assert shown.exit_code == 1
    for part in (f"runs/{file.name}", "expected ", "found ", "last good epoch  3", "newest epoch without damage: 3"):
        assert part in shown.stdout


def test_a_missing_run_is_damage(store):
    newest(store / "runs").unlink()
    (damage,) = run_json("verify", store, code=1)["damages"]
    assert damage["found"] == "no such file"


def test_a_store_that_cannot_be_opened_gets_the_same_kind_of_verdict(store):
    file = sorted((store / "log").iterdir())[-2]
    flip(file, 40)
    verdict = run_json("verify", store, code=1)
    assert not verdict["good"]
    (damage,) = [damage for damage in verdict["damages"] if damage["file"] == f"log/{file.name}"]
    assert damage["last_good_epoch"] == verdict["last_good_epoch"] == 3
    assert f"log/{file.name}" in run("verify", store).stdout


def test_a_hole_in_the_log_is_damage(store):
    file = sorted((store / "log").iterdir())[2]
    file.unlink()
    verdict = run_json("verify", store, code=1)
    assert any(damage["file"] == f"log/{file.name}" for damage in verdict["damages"])


def test_a_damaged_format_file_is_damage(store):
    flip(store / "format", 20)
    (damage,) = run_json("verify", store, code=1)["damages"]
    assert damage["file"] == "format"


def test_an_old_edit_that_several_epochs_need_is_one_damage(store):
    oldest = min((store / "log").iterdir())
    Store.open(store, settings=StoreSettings(checkpoint_every=1)).tag("now")  # the head no longer needs the log
    with Store.open(store, settings=StoreSettings(checkpoint_every=1)).writer("test") as writer:
        writer.epoch().commit()
    flip(oldest, 40)
    (damage,) = run_json("verify", store, code=1)["damages"]
    assert damage["file"] == f"log/{oldest.name}"
    assert damage["epochs"] == [1, 2, 3, 4]
    assert damage["last_good_epoch"] == 5


def test_damage_to_what_a_compaction_replaced_leaves_the_newest_epoch_good(store):
    oldest = min((store / "runs").iterdir())
    kept = Store.open(store)
    list(kept.compact(full=True))
    with kept.writer("test") as writer:
        writer.epoch().commit()
    flip(oldest, 10)
    verdict = run_json("verify", store, code=1)
    (damage,) = verdict["damages"]
    assert damage["epochs"] == [1, 2, 3, 4]
    assert damage["last_good_epoch"] == verdict["last_good_epoch"] == 5


def test_what_a_compaction_wrote_since_the_last_epoch_is_checked_too(store):
    before = set((store / "runs").iterdir())
    list(Store.open(store).compact(full=True))
    (compacted,) = set((store / "runs").iterdir()) - before
    flip(compacted, 10)
    verdict = run_json("verify", store, code=1)
    (damage,) = verdict["damages"]
    assert (damage["file"], damage["epochs"], verdict["last_good_epoch"]) == (f"runs/{compacted.name}", [4], 3)


def test_what_is_forgotten_while_it_is_checked_is_not_damage(store):
    checked = Store.open(store, settings=SETTINGS)
    collector = Store.open(store, settings=StoreSettings(sync=False, retention=RetentionSettings(1, ())))
    list(collector.compact(full=True))
    calls = []

    def collect(done: int, total: int, size_bytes: int) -> None:
        calls.append((done, total, size_bytes))
        if done == 1:
            with collector.writer("test") as writer:
                writer.epoch().commit()
                assert writer.collect_garbage().runs == 4

    verdict = checked.verify(collect)
    assert verdict.good
    assert [done for done, _, _ in calls] == list(range(1, calls[0][1] + 1))
    assert calls[0][1] > 1


def test_no_store_is_neither_good_nor_damaged(tmp_path):
    path = tmp_path / "nothing"
    assert "there is no store" in run_json("verify", path, code=2)["error"]
    shown = run("verify", path)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert len(shown.stderr.splitlines()) == 1
    assert not path.exists()


def test_an_option_without_a_value_is_a_usage_error(store):
    assert run_json("verify", store, "--option", "endpoint", code=2)["kind"] == "BadInput"


def test_an_empty_directory_is_no_store(store):
    shutil.rmtree(store)
    store.mkdir()
    assert run_json("verify", store, code=2)["kind"] == "StoreNotFound"
