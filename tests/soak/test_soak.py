"""The soak itself: campaigns that end well, planted bugs that it sees, and a runner that shares, replays and survives."""

import io
import itertools
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from floodplain.sinks.files import ParquetSink
from floodplain.sinks.memory import MemorySink
from floodplain.sinks.staged import read_staged
from floodplain.store.run import chunks
from floodplain.versions.records import vouched
from tests.soak import __main__ as runner
from tests.soak import planted
from tests.soak.campaign import tried
from tests.soak.campaigns import ALL, CAMPAIGNS
from tests.soak.outcome import FAILURES, Outcome
from tests.soak.worker import Worker

SLOW = {name for name, campaign in CAMPAIGNS.items() if name.startswith("spark_") or campaign.least_minutes}
REPLAYED = sorted(CAMPAIGNS.keys() - SLOW - {"racing_threads", "racing_processes"})
"""Those whose trials are the same each time; elsewhere the system decides who is first."""


@pytest.mark.parametrize("name", sorted(CAMPAIGNS.keys() - SLOW))
def test_trials_and_their_controls_end_well(tmp_path, name):
    verdict = tried(CAMPAIGNS[name], 3, 0, tmp_path / "trial")
    assert verdict.outcome not in FAILURES and verdict.fault, verdict
    verdict = tried(CAMPAIGNS[name], 3, 0, tmp_path / "control", control=True)
    assert verdict.outcome is Outcome.OK, verdict


@pytest.mark.parametrize("name", REPLAYED)
def test_a_trial_is_the_same_whatever_ran_before(tmp_path, name):
    def outcome(number: int, folder: str) -> tuple[Outcome, int]:
        verdict = tried(CAMPAIGNS[name], 4, number, tmp_path / folder)
        return verdict.outcome, len(verdict.fault)

    first = outcome(1, "first")
    outcome(0, "other")
    assert outcome(1, "again") == first


def sees(outcome: Outcome, name: str, folder: Path) -> bool:
    """Whether one of some trials ends so."""
    return any(tried(CAMPAIGNS[name], 5, number, folder / str(number)).outcome is outcome for number in range(40))


class Blind(int):
    """A checksum that is whatever it should be."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def test_chunks_that_are_not_verified_are_seen_as_silently_wrong(tmp_path, monkeypatch):
    assert not sees(Outcome.SILENTLY_WRONG, "open_file_changed", tmp_path / "whole")
    monkeypatch.setattr(chunks, "xxhash", SimpleNamespace(xxh3_64_intdigest=lambda _: Blind()))
    assert sees(Outcome.SILENTLY_WRONG, "open_file_changed", tmp_path / "planted")


def test_a_sink_that_does_not_know_what_it_has_published_is_seen_as_duplicated(tmp_path, monkeypatch):
    def publish(self, epoch, staged, blobs, schema):
        self._epochs[len(self._epochs)] = read_staged(staged, blobs, schema)

    monkeypatch.setattr(MemorySink, "publish", publish)
    assert sees(Outcome.DUPLICATED, "sink_failure", tmp_path)


def test_a_sink_that_leaves_a_file_out_is_seen_as_lost(tmp_path, monkeypatch):
    whole = ParquetSink.publish
    monkeypatch.setattr(ParquetSink, "publish", lambda self, epoch, staged, *more: whole(self, epoch, staged[:1], *more))
    assert sees(Outcome.LOST, "sink_failure", tmp_path)


def test_an_error_that_does_not_say_which_file_is_seen_as_unclear(tmp_path, monkeypatch):
    def check(*_):
        raise ValueError("bad magic")

    monkeypatch.setattr(vouched, "check", check)
    assert sees(Outcome.UNCLEAR_ERROR, "staged_output", tmp_path)


@pytest.fixture
def soak(tmp_path, monkeypatch):
    """Makes a soak of some campaigns, planted ones among them; ends its process."""
    for name, campaign in planted.PLANTED.items():
        monkeypatch.setitem(CAMPAIGNS, name, campaign)
    worker = Worker(tmp_path / "scratch", "tests.soak.planted")

    def make(*names: str, seed: int = 1) -> runner.Soak:
        """Each look at the clock takes a second of its 99."""
        seconds = itertools.count()
        campaigns = [CAMPAIGNS[name] for name in names]
        return runner.Soak(campaigns, 99 / 60, seed, worker, io.StringIO(), lambda: float(next(seconds)))

    yield make
    worker.close()


def test_a_failure_names_a_command_that_brings_it_about_again(soak):
    made = soak("planted_loss", seed=7)
    made.run()
    row, said = made.rows["planted_loss"], made._out.getvalue()
    assert row.outcomes[Outcome.LOST] and row.outcomes[Outcome.OK] and not row.controls_wrong and not made.good
    again = shlex.split(said.partition("again: ")[2].partition("\n")[0])
    chosen = runner._options(again[3:])
    once = soak(*chosen.only, seed=chosen.seed)
    verdict = once.trial(once.rows["planted_loss"], chosen.trial)
    assert verdict.outcome is Outcome.LOST and f"fault: {verdict.fault}\n" in said


def test_a_trial_that_kills_its_process_or_never_ends_is_unclear_and_the_others_go_on(soak):
    made = soak("planted_death", "planted_hang", "planted_loss")
    for name in made.rows:
        made.trial(made.rows[name], 0)
    assert [made.rows[name].outcomes[Outcome.UNCLEAR_ERROR] for name in made.rows] == [1, 1, 0]
    assert "the process ended with -7" in made._out.getvalue() and "no end within 1 s" in made._out.getvalue()
    assert made.rows["planted_loss"].tried == 1


def test_each_has_its_trials_and_controls_and_progress_is_told(soak):
    made = soak("racing_actors", "checkpoint_files")
    made.run()
    told = made.told(99 / 60)
    assert [row["fault"] for row in told["faults"]] == ["racing_actors", "checkpoint_files"]
    assert all(row["tried"] > 1 and row["controls"] and not row["controls_wrong"] for row in told["faults"]) and made.good
    lines = made._out.getvalue().splitlines()
    assert re.fullmatch(r"\[ +\d+ s of 99 s\] racing_actors: 1 trials; all: 1 trials, 0 bad", lines[0])
    assert any("checkpoint_files: 1 trials" in line for line in lines)


def test_the_command_ends_with_one_line_of_json(capsys):
    assert runner.main(["--only", "checkpoint_files", "--trial", "3", "--seed", "9", "--json"]) == 0
    out = capsys.readouterr()
    told = json.loads(out.out)
    assert (told["soak"]["minutes"], told["soak"]["seed"]) == (60, 9)
    assert [(row["fault"], row["tried"]) for row in told["faults"]] == [("checkpoint_files", 1)]
    assert "fault: " in out.err


def test_a_part_without_time_for_a_trial_fails(capsys):
    assert runner.main(["--only", "racing_actors", "--minutes", "0"]) == 1
    assert "no time for a trial; give more minutes" in capsys.readouterr().out


def test_one_trial_needs_one_part(capsys):
    with pytest.raises(SystemExit):
        runner.main(["--trial", "3"])
    assert "--trial needs one --only PART" in capsys.readouterr().err


def test_the_help_names_every_part(capsys):
    with pytest.raises(SystemExit):
        runner.main(["--help"])
    said = capsys.readouterr().out
    assert all(campaign.name in said and campaign.about in said for campaign in ALL)
