"""The S3 server of benchmarks that answers late: the same answers, later, and counted."""

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from floodplain.bench.harness.s3_server import S3Server
from floodplain.bench.harness.slow_s3 import SlowS3, slowed
from floodplain.clock import SystemClock
from floodplain.errors import AlreadyExists, NotFound
from floodplain.metrics import Counters
from floodplain.settings import RetrySettings
from floodplain.tier_use import TierUse, tiers_sum
from floodplain.tiers.objects import ObjectBlobs

pytestmark = pytest.mark.s3
DELAY_MS = 30.0


@pytest.fixture(scope="module")
def slow(s3_server: S3Server) -> Iterator[SlowS3]:
    with slowed(s3_server, DELAY_MS, SystemClock()) as made:
        yield made


def test_each_request_is_answered_as_without_it_and_later_and_counted(slow: SlowS3, s3_server: S3Server) -> None:
    counters = Counters()
    where = uuid.uuid4().hex
    direct = ObjectBlobs(s3_server.url(where), s3_server.options, RetrySettings(), Counters())
    blobs = ObjectBlobs(slow.slow.url(where), slow.slow.options, RetrySettings(), counters)
    before = slow.requests()
    large = os.urandom(3_000_000)
    blobs.create("runs/a", large)
    with pytest.raises(AlreadyExists):
        blobs.create("runs/a", b"other")
    blobs.put("runs/empty", b"")
    names = [f"log/{number:04}" for number in range(40)]
    for name in names:
        direct.put(name, b"x" * 100)
    assert blobs.get("runs/a").to_pybytes() == direct.get("runs/a").to_pybytes() == large
    assert blobs.get("runs/empty").size == 0
    assert [each.to_pybytes() for each in blobs.get_ranges("runs/a", [(5, 10), (2_000_000, 20)])] == [
        large[5:15], large[2_000_000:2_000_020]
    ]  # fmt: skip
    assert [info.name for info in blobs.list("log/")] == names
    assert blobs.size("runs/a") == len(large)
    with pytest.raises(NotFound):
        blobs.get("runs/never")
    blobs.delete([*names, "runs/empty"])
    assert list(direct.list("log/")) == []
    asked, counted = slow.requests() - before, tiers_sum(counters.tally.uses())["object"]
    assert asked == TierUse(puts=3, gets=5, lists=1, heads=1, deletes=1)
    assert asked.requests == counted.requests
    assert counted.waited_us >= (asked.requests - 1) * DELAY_MS * 1000, "two ranges wait at the same time"


def test_requests_at_the_same_time_wait_at_the_same_time(slow: SlowS3) -> None:
    counters = Counters()
    blobs = ObjectBlobs(slow.slow.url(uuid.uuid4().hex), slow.slow.options, RetrySettings(), counters)
    blobs.put("runs/a", b"abc")
    clock = SystemClock()
    began_s = clock.monotonic_s()
    with ThreadPoolExecutor(20) as pool:
        assert {data.to_pybytes() for data in pool.map(lambda _: blobs.get("runs/a"), range(100))} == {b"abc"}
    assert clock.monotonic_s() - began_s < 100 * DELAY_MS / 1000
