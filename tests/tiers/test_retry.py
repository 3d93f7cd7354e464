from collections.abc import Iterator

import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import AlreadyExists, NotFound, Refused, Unavailable
from floodplain.metrics import TIER_REQUESTS, TIER_RETRIES, Counters
from floodplain.settings import RetrySettings
from floodplain.tiers.blobs import BlobInfo
from floodplain.tiers.memory import MemoryBlobs
from floodplain.tiers.objects import ObjectBlobs
from floodplain.tiers.retry import Retrying, delay_s
from tests.tiers.fake_s3 import FakeS3, Fault

RETRY = RetrySettings(attempts=4, first_delay_ms=100, max_delay_ms=300)


@pytest.fixture
def retrying(faked: ObjectBlobs, clock: ManualClock, randomness: SeededRandomness, counters: Counters) -> Retrying:
    return Retrying(faked, RETRY, clock=clock, randomness=randomness, counters=counters)


CALLS = {
    "PUT": lambda blobs: blobs.put("log/1", b"x"),
    "GET": lambda blobs: blobs.get("log/1"),
    "HEAD": lambda blobs: blobs.size("log/1"),
    "POST": lambda blobs: blobs.delete(["log/1"]),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("fault", [Fault(503), Fault(429), Fault(None)], ids=str)
def test_passing_faults_are_ridden_out(
    retrying: Retrying, fake_s3: FakeS3, clock: ManualClock, counters: Counters, method: str, fault: Fault
) -> None:
    fake_s3.objects["log/1"] = b"x"
    fake_s3.faults.extend([Fault(fault.status, method=method)] * 3)
    CALLS[method](retrying)
    assert fake_s3.asked(method) == 4
    assert len(clock.sleeps_s) == 3
    assert counters.get(TIER_RETRIES, "object") == 3
    assert counters.get(TIER_REQUESTS, "object") == 4


@pytest.mark.parametrize("method", CALLS)
def test_gives_up_after_all_tries(retrying: Retrying, fake_s3: FakeS3, method: str) -> None:
    fake_s3.faults.extend([Fault(503, method=method)] * 9)
    with pytest.raises(Unavailable, match="503"):
        CALLS[method](retrying)
    assert fake_s3.asked(method) == RETRY.attempts


@pytest.mark.parametrize(("status", "kind"), [(403, Refused), (400, Refused), (404, NotFound)])
def test_other_errors_are_not_retried(retrying: Retrying, fake_s3: FakeS3, status: int, kind: type[Exception]) -> None:
    fake_s3.faults.append(Fault(status, method="GET"))
    with pytest.raises(kind):
        retrying.get("log/1")
    assert fake_s3.asked("GET") == 1


@pytest.mark.parametrize(("status", "kind"), [(503, Unavailable), (412, AlreadyExists)])
def test_create_is_asked_once(
    retrying: Retrying, fake_s3: FakeS3, clock: ManualClock, status: int, kind: type[Exception]
) -> None:
    fake_s3.faults.append(Fault(status))
    with pytest.raises(kind):
        retrying.create("log/1", b"x")
    assert fake_s3.asked("PUT") == 1
    assert clock.sleeps_s == []


def test_a_listing_goes_on_where_it_broke_off(clock: ManualClock, randomness: SeededRandomness, counters: Counters) -> None:
    class Breaking(MemoryBlobs):
        def list(self, prefix: str, after: str = "") -> Iterator[BlobInfo]:
            for at, info in enumerate(super().list(prefix, after)):
                if at == 3:
                    raise Unavailable("broke off")
                yield info

    blobs = Retrying(Breaking("memory://x", counters), RETRY, clock=clock, randomness=randomness, counters=counters)
    names = [f"log/{n:02}" for n in range(20)]
    for name in names:
        blobs.put(name, b"x")
    assert [info.name for info in blobs.list("log/", "log/00")] == names[1:]


def test_the_delay_is_anything_up_to_a_bound_that_doubles() -> None:
    randomness = SeededRandomness(1)
    for tries, bound_s in ((1, 0.1), (2, 0.2), (3, 0.3), (9, 0.3)):
        delays = [delay_s(RETRY, tries, randomness) for _ in range(300)]
        assert 0 <= min(delays) < bound_s * 0.1
        assert bound_s * 0.9 < max(delays) <= bound_s
