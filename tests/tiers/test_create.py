"""I3: any answer but success is ambiguous, and reading back settles it."""

import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import AlreadyExists, FloodplainError, NotFound, Refused, Unavailable
from floodplain.metrics import Counters
from floodplain.settings import RetrySettings
from floodplain.tiers.create import create_or_read
from floodplain.tiers.memory import MemoryBlobs
from floodplain.tiers.objects import ObjectBlobs
from tests.tiers.fake_s3 import FakeS3, Fault

RETRY = RetrySettings(attempts=4, timeout_ms=500)

STORED = [
    Fault(500, stores=True),
    Fault(503, stores=True),
    Fault(409, stores=True),
    Fault(412, stores=True),
    Fault(403, stores=True),
]
STORED += [Fault(None, stores=True), Fault(None, stores=True, hangs=True)]
LOST = [Fault(500), Fault(503), Fault(429), Fault(408), Fault(409), Fault(412), Fault(None), Fault(None, hangs=True)]
LOST += [Fault(400, code="RequestTimeout")]


def settle(blobs: ObjectBlobs | MemoryBlobs, data: bytes, clock: ManualClock) -> bytes | None:
    found = create_or_read(blobs, "log/1", data, RETRY, clock, SeededRandomness(1))
    return None if found is None else found.to_pybytes()


def test_success_asks_once(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock) -> None:
    assert settle(faked, b"mine", clock) is None
    assert fake_s3.requests == [("PUT", "/bucket/log/1")]


@pytest.mark.parametrize("fault", STORED, ids=str)
def test_stored_whatever_the_answer_is_ours(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, fault: Fault) -> None:
    fake_s3.faults.append(fault)
    assert settle(faked, b"mine", clock) is None
    assert fake_s3.objects["log/1"] == b"mine"
    assert fake_s3.asked("PUT") == 1


@pytest.mark.parametrize("fault", STORED + LOST, ids=str)
def test_taken_whatever_the_answer_is_theirs(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, fault: Fault) -> None:
    for theirs in (b"theirs", b"them"):
        fake_s3.objects["log/1"] = theirs
        fake_s3.faults.append(fault)
        assert settle(faked, b"mine", clock) == theirs
        assert fake_s3.objects["log/1"] == theirs


@pytest.mark.parametrize("fault", LOST, ids=str)
def test_not_stored_is_tried_again(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, fault: Fault) -> None:
    fake_s3.faults.extend([fault, fault])
    assert settle(faked, b"mine", clock) is None
    assert fake_s3.objects["log/1"] == b"mine"
    assert fake_s3.asked("PUT") == 3
    assert len(clock.sleeps_s) == 2


def test_a_first_try_that_arrives_late_is_still_ours(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock) -> None:
    class Late(ManualClock):
        def sleep_s(self, seconds: float) -> None:
            fake_s3.objects["log/1"] = b"mine"

    fake_s3.faults.append(Fault(None))
    assert settle(faked, b"mine", Late()) is None


@pytest.mark.parametrize(("status", "kind"), [(503, Unavailable), (412, Unavailable), (409, Unavailable)])
def test_gives_up_after_all_tries(
    faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, status: int, kind: type[FloodplainError]
) -> None:
    fake_s3.faults.extend([Fault(status)] * 10)
    with pytest.raises(kind):
        settle(faked, b"mine", clock)
    assert fake_s3.asked("PUT") == RETRY.attempts
    assert len(clock.sleeps_s) == RETRY.attempts - 1
    assert fake_s3.objects == {}


def test_refused_and_absent_is_raised_at_once(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock) -> None:
    fake_s3.faults.append(Fault(403, code="AccessDenied"))
    with pytest.raises(Refused, match="AccessDenied"):
        settle(faked, b"mine", clock)
    assert fake_s3.asked("PUT") == 1
    assert clock.sleeps_s == []


def test_a_read_back_that_fails_leads_to_another_try(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock) -> None:
    fake_s3.faults.extend([Fault(403, stores=True), Fault(503, method="GET")])
    assert settle(faked, b"mine", clock) is None
    assert fake_s3.asked("PUT") == 2


def test_taken_and_unreadable_is_unavailable(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock) -> None:
    fake_s3.objects["log/1"] = b"theirs"
    fake_s3.faults.extend([Fault(503, method="GET")] * 10)
    with pytest.raises(Unavailable):
        settle(faked, b"mine", clock)


def test_back_off_grows_and_is_bounded(clock: ManualClock) -> None:
    class Down(MemoryBlobs):
        def create(self, name: str, data: object) -> None:
            raise AlreadyExists("so it says")

    class Highest(SeededRandomness):
        def uniform(self) -> float:
            return 1.0

    retry = RetrySettings(attempts=6, first_delay_ms=100, max_delay_ms=500)
    with pytest.raises(Unavailable):
        create_or_read(Down("memory://x", Counters()), "log/1", b"mine", retry, clock, Highest(1))
    assert clock.sleeps_s == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_errors_from_the_fake_are_what_they_should_be(faked: ObjectBlobs, fake_s3: FakeS3) -> None:
    expected = {
        Fault(500): Unavailable,
        Fault(503): Unavailable,
        Fault(429): Unavailable,
        Fault(408): Unavailable,
        Fault(409): Unavailable,
        Fault(409, code="BlobAlreadyExists"): AlreadyExists,
        Fault(412): AlreadyExists,
        Fault(400): Refused,
        Fault(401): Refused,
        Fault(403): Refused,
        Fault(404, code="NoSuchBucket"): Refused,
        Fault(None): Unavailable,
        Fault(None, hangs=True): Unavailable,
    }
    for fault, kind in expected.items():
        fake_s3.faults.append(fault)
        with pytest.raises(kind) as caught:
            faked.create("log/1", b"x")
        assert caught.type is kind, fault
        assert "s3://bucket" in str(caught.value)
    for fault, kind in {Fault(404): NotFound, Fault(404, code="NoSuchBucket"): Refused, Fault(403): Refused}.items():
        fake_s3.faults.append(Fault(fault.status, code=fault.code, method="GET"))
        with pytest.raises(kind):
            faked.get("log/1")
