import pytest

from floodplain.errors import SnapshotExpired
from floodplain.store.store import Store
from tests.cli.stores import USERS, add_epochs, counts, run, run_json


def test_epochs_beyond_those_asked_for_are_forgotten(tmp_path):
    add_epochs(tmp_path, 5)
    Store.open(tmp_path).tag("kept", 2)
    done = run_json("gc", tmp_path, "--newest", 1, "--keep", "0s/1s")
    assert done["epochs"] == [1, 3, 4]
    store = Store.open(tmp_path)
    assert store.at(tag="kept").epoch == 2
    with pytest.raises(SnapshotExpired):
        store.at(epoch=3)
    assert counts(tmp_path) == dict.fromkeys(USERS, 5)


def test_by_default_the_newest_stay(tmp_path):
    add_epochs(tmp_path, 5)
    shown = run("gc", tmp_path)
    assert shown.exit_code == 0
    assert "0 epochs forgotten" in shown.stdout


@pytest.mark.parametrize("keep", ["1h", "1h/0s", "soon/1s", "1h/1month"])
def test_a_retention_that_makes_no_sense_is_refused(tmp_path, keep):
    add_epochs(tmp_path, 1)
    assert run_json("gc", tmp_path, "--keep", keep, code=2)["kind"] == "BadInput"
