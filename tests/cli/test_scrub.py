import pytest

from tests.cli.stores import add_epochs, flip, newest, run, run_json


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    add_epochs(path, 4)
    return path


def test_it_says_what_verify_says(store):
    assert run_json("scrub", store, "--rate", "1GB/s") == run_json("verify", store)
    flip(newest(store / "runs"), 10)
    assert run_json("scrub", store, "--rate", "1GB/s", code=1) == run_json("verify", store, code=1)
    assert f"runs/{newest(store / 'runs').name}" in run("scrub", store).stdout


@pytest.mark.parametrize("rate", ["50MB", "fast", "0/s", "5MB/h", "/s", ""])
def test_what_is_no_rate_is_refused(store, rate):
    shown = run_json("scrub", store, "--rate", rate, code=2)
    assert shown["kind"] == "BadInput"


def test_no_store_is_not_a_verdict(tmp_path):
    assert run("scrub", tmp_path / "none").exit_code == 2
