"""I7: a place whose create-if-absent does not hold is refused."""

import pytest

from floodplain.clock import ManualClock, SeededRandomness
from floodplain.errors import Refused, Unavailable, UnsafeStore
from floodplain.tiers.objects import ObjectBlobs
from floodplain.tiers.probe import RACERS, ROUNDS, TRIES, probe
from tests.tiers.fake_s3 import FakeS3, Fault


def test_a_safe_store_costs_few_requests(
    faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness
) -> None:
    probe(faked, clock, randomness)
    assert fake_s3.objects == {}
    assert len(fake_s3.requests) == ROUNDS * (RACERS + 2) + 1


def test_ignores_if_none_match(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness) -> None:
    fake_s3.heeds_if_none_match = False
    with pytest.raises(UnsafeStore, match=r"create-if-absent does not hold at s3://bucket: 3 creates .* cannot commit safely"):
        probe(faked, clock, randomness)
    assert fake_s3.objects == {}


def test_looks_before_it_stores(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness) -> None:
    fake_s3.look_then_store(ROUNDS * RACERS)
    with pytest.raises(UnsafeStore, match="2 creates"):
        probe(faked, clock, randomness)


def test_forgets(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness) -> None:
    fake_s3.forgets = True
    with pytest.raises(UnsafeStore):
        probe(faked, clock, randomness)


def test_answers_no_and_overwrites(faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness) -> None:
    store = fake_s3.store

    def overwriting(key: str, data: bytes, conditional: bool) -> bool:
        new = store(key, data, conditional)
        fake_s3.objects[key] = data
        return new

    fake_s3.store = overwriting
    with pytest.raises(UnsafeStore, match="is there instead of"):
        probe(faked, clock, randomness)


def test_passing_faults_are_ridden_out(
    faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness
) -> None:
    fake_s3.faults.extend([Fault(503)] * ROUNDS * (RACERS + 1))
    probe(faked, clock, randomness)
    assert len(clock.sleeps_s) == 1


@pytest.mark.parametrize(("status", "kind"), [(503, Unavailable), (403, Refused)])
def test_a_store_that_cannot_be_asked_is_not_called_unsafe(
    faked: ObjectBlobs, fake_s3: FakeS3, clock: ManualClock, randomness: SeededRandomness, status: int, kind: type[Exception]
) -> None:
    fake_s3.faults.extend([Fault(status)] * 100)
    with pytest.raises(kind):
        probe(faked, clock, randomness)
    assert fake_s3.asked("PUT") == TRIES * ROUNDS * (RACERS + 1)
