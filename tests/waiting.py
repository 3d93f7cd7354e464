"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 90


def wait_for(what: str, holds: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Until ``holds`` gives something true, which is returned; raises when that takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.01)
    return found
