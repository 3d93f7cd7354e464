"""`floodplain rescale`: requests that reach a query through its log, and plans."""

import threading

import pytest

import floodplain as fp
from tests.cli.stores import add_epochs, run, run_json
from tests.formats.small_state import Running


def build(stream):
    counted = stream.watermark("ts", "1 minute").key_by("user", "v").agg(name="counts", n=fp.count())
    return counted.key_by("n").agg(name="sizes", users=fp.count()).write("memory")


@pytest.fixture
def query(tmp_path):
    running = Running(tmp_path / "state", build)
    running.batch(0)
    yield running
    running.close()


def slots(query):
    head = query.store.history.refresh()
    return {name: head.assignment_of(name).slots for name in ("counts", "sizes")}


def test_a_request_is_done_by_the_query_and_told(query, tmp_path):
    made = run_json("rescale", tmp_path / "state", "counts=4")
    assert (made["status"], made["slots"], made["replaced"], made["plan"]) == ("requested", {"counts": 4}, None, [])
    query.epochs.tick(0, 0)
    assert slots(query) == {"counts": 4, "sizes": 2}
    shown = run("rescale", tmp_path / "state", 3)
    assert shown.exit_code == 0 and "requested" in shown.stdout and "counts=3, sizes=3" in shown.stdout
    query.batch(1)
    query.batch(2)
    assert slots(query) == {"counts": 3, "sizes": 3}
    assert [each["slots"] for each in run_json("inspect", tmp_path / "state")["operators"]] == [3, 3]


def test_the_newest_counts_and_says_so(query, tmp_path):
    first = run_json("rescale", tmp_path / "state", 4)
    second = run_json("rescale", tmp_path / "state", "sizes=1")
    assert second["replaced"] == first["position"]
    shown = run("rescale", tmp_path / "state", 3)
    assert f"the request at position {second['position']} is replaced: the newest counts" in shown.stdout


def test_waiting_ends_when_the_query_has_answered(query, tmp_path):
    answering = threading.Thread(target=lambda: answer(query))
    answering.start()
    made = run_json("rescale", tmp_path / "state", 4, "--wait", "--timeout", 60)
    answering.join()
    assert made["status"] == "done" and slots(query) == {"counts": 4, "sizes": 4}


def answer(query):
    """As the heartbeat of a query does."""
    while query.store.head.rescaled is None:
        query.store.history.refresh()
        query.epochs.tick(0, 0)


def test_waiting_for_a_query_that_does_not_run_ends_in_time_and_the_request_stays(query, tmp_path):
    failed = run_json("rescale", tmp_path / "state", 4, "--wait", "--timeout", 0, code=2)
    assert failed["kind"] == "Conflict" and "goes on waiting" in failed["error"]
    assert query.store.history.refresh().rescale is not None


def test_a_plan_shows_what_moves_and_requests_nothing(query, tmp_path):
    planned = run_json("rescale", tmp_path / "state", "counts=4", "--plan")
    (each,) = planned["plan"]
    assert planned["status"] == "planned" and (each["slots_before"], each["slots_after"]) == (2, 4)
    assert sum(high - low for low, high in each["moved"]) == 2 and len(each["bytes_after"]) == 4
    shown = run("rescale", tmp_path / "state", "counts=4", "--plan")
    assert shown.exit_code == 0 and "2 → 4" in shown.stdout and "Nothing was requested" in shown.stdout
    assert query.store.history.refresh().rescale is None


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (["many"], "neither a number of slots nor OPERATOR=NUMBER"),
        (["3", "counts=2"], "'3' is neither"),
        (["cuonts=2"], "no operator 'cuonts'"),
        ([5], "5 slots are not possible: use 1 to 4"),
    ],
)
def test_what_cannot_be_ends_with_an_error_and_changes_nothing(query, tmp_path, slots, words):
    failed = run_json("rescale", tmp_path / "state", *slots, code=2)
    assert words in failed["error"]
    assert query.store.history.refresh().rescale is None


def test_a_state_without_operators_has_nothing_to_rescale(tmp_path):
    add_epochs(tmp_path, 1)
    assert "no query has run" in run_json("rescale", tmp_path, 2, code=2)["error"]
