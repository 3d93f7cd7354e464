from floodplain.store.store import Store
from tests.cli.stores import SETTINGS, USERS, add_epochs, counts, flip, run, run_json


def test_the_content_of_an_epoch_is_there_again(tmp_path):
    add_epochs(tmp_path, 5)
    done = run_json("rollback", tmp_path, "--to", 2)
    assert (done["restored"], done["epoch"], done["before"], done["dry_run"]) == (2, 6, 5, False)
    assert done["tables"][0]["name"] == "counts"
    assert counts(tmp_path) == dict.fromkeys(USERS, 2)
    assert run_json("rollback", tmp_path, "--to", 5)["epoch"] == 7
    assert counts(tmp_path) == dict.fromkeys(USERS, 5)


def test_by_tag_and_in_words(tmp_path):
    add_epochs(tmp_path, 3)
    Store.open(tmp_path).tag("good", 1)
    shown = run("rollback", tmp_path, "--tag", "good", "--dry-run")
    assert shown.exit_code == 0
    assert "epoch 4 would have the content of epoch 1" in shown.stdout
    assert counts(tmp_path) == dict.fromkeys(USERS, 3)
    shown = run("rollback", tmp_path, "--tag", "good")
    assert "epoch 4 has the content of epoch 1" in shown.stdout
    assert "60 → 20 rows in runs, 3 → 1 runs" in shown.stdout
    assert "stays published" in shown.stdout and "published again, under new epoch numbers" in shown.stdout
    assert "--to 3" in shown.stdout
    assert counts(tmp_path) == dict.fromkeys(USERS, 1)


def test_a_live_writer_is_left_alone_unless_forced(tmp_path):
    add_epochs(tmp_path, 2)
    writer = Store.open(tmp_path, settings=SETTINGS).writer("driver")
    refused = run_json("rollback", tmp_path, "--to", 1, code=2)
    assert refused["kind"] == "LeaseHeld" and "'driver' (process " in refused["error"]
    assert run_json("rollback", tmp_path, "--to", 1, "--force")["epoch"] == 3
    writer.close()


def test_what_cannot_be_is_refused_with_a_reason(tmp_path):
    add_epochs(tmp_path, 3)
    assert run_json("rollback", tmp_path, code=2)["kind"] == "BadInput"
    assert run_json("rollback", tmp_path, "--to", 9, code=2)["kind"] == "BadInput"
    run_json("gc", tmp_path, "--newest", 1, "--keep", "0s/1s")
    assert run_json("rollback", tmp_path, "--to", 1, code=2)["kind"] == "SnapshotExpired"


def test_a_damaged_epoch_is_refused(tmp_path):
    add_epochs(tmp_path, 2)
    (run_file,) = {run.object for run in Store.open(tmp_path).history.at(1).runs["counts"]}
    flip(tmp_path / run_file, -5)
    refused = run_json("rollback", tmp_path, "--to", 1, code=1)
    assert refused["kind"] == "Corrupt" and run_file in refused["error"]
    assert Store.open(tmp_path).head.epoch == 2
