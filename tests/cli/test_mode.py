"""Commands that write give their files the permissions that they are told."""

import stat

import pytest

from tests.cli.stores import add_epochs, run_json

COMMANDS = [("compact", "--full"), ("gc", "--newest", "1", "--keep", "0s/1s"), ("rollback", "--to", "2")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_new_files_have_the_mode(tmp_path, command):
    add_epochs(tmp_path, 4)
    before = set(tmp_path.rglob("*"))
    name, *more = command
    run_json(name, tmp_path, *more, "--mode", "600")
    new = [path for path in set(tmp_path.rglob("*")) - before if path.is_file()]
    assert new
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in new} == {oct(0o600)}


@pytest.mark.parametrize("mode", ["rw", "", "888", "777", "40", "0o640x"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_mode_that_makes_no_sense_is_refused(tmp_path, command, mode):
    add_epochs(tmp_path, 1)
    name, *more = command
    assert run_json(name, tmp_path, *more, "--mode", mode, code=2)["kind"] == "BadInput"
