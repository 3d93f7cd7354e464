import subprocess
import sys

import pytest

from tests.cli.stores import run

COMMANDS = ("verify", "scrub", "inspect", "cost", "compact", "gc", "bench")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_of_the_command_itself(command):
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert f"floodplain {command} " in shown.stdout.partition("Examples:")[2]
    assert "--json" in shown.stdout


def test_help_names_every_command():
    shown = run("--help").stdout
    assert all(command in shown for command in COMMANDS)


def test_an_unknown_command_or_a_missing_path_is_a_usage_error():
    assert run("nonsense").exit_code == 2
    assert run("verify").exit_code == 2


def test_it_runs_as_a_module():
    shown = subprocess.run([sys.executable, "-m", "floodplain", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("floodplain ")
