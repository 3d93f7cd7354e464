"""Two hosts, as network namespaces, that are cut apart in the middle of an epoch."""

import ctypes
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from floodplain.testing.process_launcher import ProcessLauncher, serve
from tests.waiting import wait_for
from tests.workers.pipelines import ROWS, batches, build, control, shown, state_of
from tests.workers.worker_kit import ProxiedEngine, WorkersKit

NEAR, FAR = "10.203.77.1", "10.203.77.2"
CLONE_NEWNET = 0x40000000
EPOCHS = 3
_numbers = count()


@pytest.fixture
def far_host():
    """The name of a namespace that is reached over a link; this process is on the other end."""
    # A namespace lives on as long as a process is in it.
    name = link = f"fp{os.getpid()}-{next(_numbers)}"
    if shutil.which("ip") is None or sys.platform != "linux":
        _skip("there is no ip")
    if _ip("netns", "add", name, check=False).returncode:
        _skip("network namespaces are not permitted")
    try:
        if _ip("link", "add", link, "type", "veth", "peer", "name", "far", "netns", name, check=False).returncode:
            _skip("links between network namespaces are not permitted")
        _ip("addr", "add", f"{NEAR}/30", "dev", link)
        _ip("link", "set", link, "up")
        _ip("-n", name, "addr", "add", f"{FAR}/30", "dev", "far")
        _ip("-n", name, "link", "set", "far", "up")
        yield name
    finally:
        _ip("link", "del", link, check=False)
        _ip("netns", "del", name, check=False)


def _ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True)


def _skip(reason):
    warnings.warn(f"no hosts are cut apart: {reason}", stacklevel=2)
    pytest.skip(reason)


@dataclass(frozen=True)
class FarWorker:
    """Worker 1 is on the far host, which loses its link when the worker comes to a point for the ``nth`` time."""

    host: str
    point: str
    nth: int
    folder: Path

    def __call__(self, kit, launch):
        if launch.worker == 1:
            with open(f"/var/run/netns/{self.host}") as namespace:
                assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0
            kit = replace(kit, reach=partial(self._reach, [0]))
        serve(kit, launch)

    def _reach(self, reached, point):
        reached[0] += point == self.point
        if point == self.point and reached[0] == self.nth:
            (self.folder / "cut").touch()
            _ip("link", "set", "far", "down")


class NearEngine(ProxiedEngine):
    bind = NEAR

    def _address(self, port):
        return NEAR, port


class KeepsZombies(ProcessLauncher):
    """Cancels nothing: the host is out of reach."""

    def cancel(self, worker, job):
        """It lives on."""


class TwoHosts(WorkersKit):
    engine_type = NearEngine


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.soak
@pytest.mark.parametrize("point", ["process", "serve", "answer"])
def test_hosts_that_are_cut_apart_in_an_epoch_lose_and_double_nothing(far_host, tmp_path, point):
    far = FarWorker(far_host, point, 6, tmp_path)
    kit = TwoHosts(tmp_path / "state", build, rows=ROWS, slots=4, run=far, launcher=KeepsZombies).ready()
    try:
        beyond = kit.engine.coordinator.pids[1]
        assert [peer.host for _, peer in sorted(kit.engine.coordinator.present().items())] == [NEAR, FAR]
        outputs, state = control(EPOCHS)
        assert [shown(kit.epoch(rows)) for rows in batches(EPOCHS)] == outputs
        assert state_of(kit) == state
        assert (tmp_path / "cut").exists()
        assert sum(progress.tries for progress in kit.progress) > EPOCHS
        wait_for("the worker beyond the cut to end by itself", lambda: not _lives(beyond), 15)
    finally:
        kit.close()
