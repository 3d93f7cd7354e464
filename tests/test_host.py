"""A process is told from all others, and taken for gone only where that is certain."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from floodplain.host import Process, is_gone, this_process
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is never known")

SAYS_WHO = (
    "import msgspec, sys; from floodplain.host import this_process; "
    "print(msgspec.json.encode(this_process()).decode(), flush=True)"
)
LEADERLESS = f"""
import ctypes, threading
{SAYS_WHO}
threading.Thread(target=sys.stdin.readline).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def child(code: str) -> tuple[subprocess.Popen[str], Process]:
    """A process that has said who it is and waits for a line."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, msgspec.json.decode(process.stdout.readline(), type=Process)


def test_a_process_is_gone_once_it_has_ended_and_not_before():
    process, who = child(f"{SAYS_WHO}; sys.stdin.readline()")
    try:
        assert who.pid == process.pid and who.space == this_process().space and not is_gone(who)
    finally:
        process.kill()
        process.wait()
    assert is_gone(who)


def test_one_that_was_killed_and_that_nobody_has_asked_after_is_gone():
    process, who = child(f"{SAYS_WHO}; sys.stdin.readline()")
    process.kill()
    wait_for("its end", lambda: is_gone(who))
    assert process.returncode is None and Path(f"/proc/{who.pid}").exists(), "still a zombie"
    process.wait()


def test_one_whose_first_thread_has_ended_is_not_gone_while_another_runs():
    process, who = child(LEADERLESS)
    try:
        stat = Path(f"/proc/{who.pid}/stat")
        wait_for("the end of the first thread", lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert not is_gone(who)
    finally:
        process.kill()
        process.wait()
    assert is_gone(who)


def test_a_number_that_another_process_has_by_now():
    me = this_process()
    assert not is_gone(me)
    assert is_gone(msgspec.structs.replace(me, started=me.started - 1))


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "another"},
        {"space": "another boot pid:[1]"},
        {"space": ""},
    ],
    ids=["host", "namespace", "unknown"],
)
def test_of_another_machine_boot_or_namespace_nothing_is_known(elsewhere):
    process, who = child(SAYS_WHO)
    process.wait()
    assert is_gone(who)
    assert not is_gone(msgspec.structs.replace(who, **elsewhere))
