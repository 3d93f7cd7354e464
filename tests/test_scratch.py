"""Temporary folders leave nothing behind, however their process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from floodplain.scratch import Scratch
from tests.waiting import wait_for

MAKES = """
import sys
from pathlib import Path
from floodplain.scratch import Scratch
kept = Scratch("kept", Path(sys.argv[1]))
(kept.path / "file").touch()
print(kept.path, flush=True)
sys.stdin.readline()
"""


def made_elsewhere(folder: Path, *, kill: bool) -> Path:
    """A folder of a process that has ended by now."""
    process = subprocess.Popen([sys.executable, "-c", MAKES, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    assert (path / "file").exists()
    if kill:
        process.kill()
    process.communicate("\n")
    return path


def test_it_is_gone_after_the_block_and_when_it_is_forgotten(tmp_path):
    with Scratch("block", tmp_path) as path:
        (path / "file").touch()
        assert list(tmp_path.iterdir()) == [path]
    dropped = Scratch("dropped", tmp_path)
    del dropped
    assert list(tmp_path.iterdir()) == []


def test_it_is_gone_at_the_end_of_the_process(tmp_path):
    assert not made_elsewhere(tmp_path, kill=False).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not known who has ended")
def test_those_of_killed_processes_go_with_the_next_and_no_others(tmp_path):
    stale = made_elsewhere(tmp_path, kill=True)
    others = [tmp_path / "floodplain-of-somebody", tmp_path / "other"]
    for other in others:
        other.mkdir()
    mine = Scratch("mine", tmp_path)
    assert stale.name.startswith("floodplain-kept-") and not stale.exists()
    with Scratch("more", tmp_path):
        assert mine.path.exists() and all(other.exists() for other in others)


def test_a_fork_leaves_it_alone(tmp_path):
    mine = Scratch("mine", tmp_path)
    pid = os.fork()
    if pid == 0:
        mine.remove()
        os._exit(0)
    os.waitpid(pid, 0)
    wait_for("the folder", mine.path.exists)
    mine.remove()
    assert not mine.path.exists()
