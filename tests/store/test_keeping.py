"""A writer that keeps its lease while it works."""

import pytest

from floodplain.clock import ManualClock
from floodplain.errors import Fenced, LeaseHeld
from tests.store.world import memory, open_store, settings
from tests.waiting import wait_for

SHORT = settings(lease_ms=60)


def test_a_writer_that_keeps_its_lease_has_it_until_it_is_closed():
    blobs, clock = memory(), ManualClock()
    writer = open_store(blobs, clock, SHORT).writer("one")
    writer.keep()
    for _ in range(5):
        clock.advance_ms(SHORT.lease_ms // 2)
        wait_for("a renewal", lambda: writer.store.head.lease.expires_ms == clock.now_ms() + SHORT.lease_ms)
    other = open_store(blobs, clock, SHORT)
    with pytest.raises(LeaseHeld):
        other.writer("two")
    writer.close()
    assert other.writer("two").token == writer.token + 1
    writer.close()


def test_a_writer_that_no_longer_keeps_its_lease_has_not_released_it():
    blobs, clock = memory(), ManualClock()
    writer = open_store(blobs, clock, SHORT).writer("one")
    writer.keep()
    writer.rest()
    clock.advance_ms(SHORT.lease_ms)
    writer.epoch().commit()
    clock.advance_ms(SHORT.lease_ms)
    assert open_store(blobs, clock, SHORT).writer("two").token == writer.token + 1
    with pytest.raises(Fenced):
        writer.epoch().commit()
