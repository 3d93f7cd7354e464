"""What is special about object stores."""

import os
import uuid
from pathlib import Path

import pytest

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import BadInput, FloodplainError, Refused, Unavailable
from floodplain.metrics import TIER_READ_BYTES, TIER_REQUESTS, Counters
from floodplain.settings import CacheSettings, RetrySettings, StoreSettings
from floodplain.tiers.objects import GAP_BYTES, ObjectBlobs
from floodplain.tiers.open import open_blobs
from tests.conftest import S3Server
from tests.tiers.fake_s3 import FakeS3, Fault


def test_near_ranges_travel_together(faked: ObjectBlobs, fake_s3: FakeS3, counters: Counters) -> None:
    fake_s3.objects["runs/a"] = data = os.urandom(3 * GAP_BYTES)
    ranges = [(0, 10), (2 * GAP_BYTES, 10), (20, 10), (2 * GAP_BYTES + 100, 10), (5, 0)]
    assert [piece.to_pybytes() for piece in faked.get_ranges("runs/a", ranges)] == [data[at : at + n] for at, n in ranges]
    assert fake_s3.asked("GET") == counters.get(TIER_REQUESTS, "object") == 2
    assert counters.get(TIER_READ_BYTES, "object") == 30 + 110


def test_obstore_does_not_retry_by_itself(faked: ObjectBlobs, fake_s3: FakeS3) -> None:
    for fault in (Fault(503, method="GET"), Fault(None, method="GET"), Fault(None, method="GET", hangs=True)):
        fake_s3.requests.clear()
        fake_s3.faults.append(fault)
        with pytest.raises(Unavailable):
            faked.get("log/1")
        assert fake_s3.asked("GET") == 1


def test_an_unreachable_server_is_unavailable(counters: Counters) -> None:
    options = {"endpoint": "http://127.0.0.1:1", "allow_http": "true", "access_key_id": "x", "secret_access_key": "x"}
    with pytest.raises(Unavailable, match=r"reading log/1 at s3://bucket/state failed"):
        ObjectBlobs("s3://bucket/state", options, RetrySettings(), counters).get("log/1")


@pytest.mark.parametrize("options", [{"nonsense": "1"}, {"allow_http": "perhaps"}])
def test_bad_options_are_bad_input(options: dict[str, str], counters: Counters) -> None:
    with pytest.raises(BadInput, match="cannot open s3://bucket/x"):
        ObjectBlobs("s3://key:secret@bucket/x", options, RetrySettings(), counters)


def test_messages_carry_no_secrets(faked: ObjectBlobs, fake_s3: FakeS3) -> None:
    fake_s3.faults.append(Fault(403, method="GET", code="SignatureDoesNotMatch"))
    with pytest.raises(Refused, match="SignatureDoesNotMatch") as caught:
        faked.get("log/1")
    assert "secret" not in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_a_forked_child_is_told_and_does_not_hang(faked: ObjectBlobs, fake_s3: FakeS3) -> None:
    fake_s3.objects["log/1"] = b"x"
    faked.get("log/1")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            faked.get("log/1")
        except FloodplainError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        assert "forked" in answer.read()
    os.waitpid(child, 0)
    assert faked.get("log/1").to_pybytes() == b"x"


@pytest.mark.s3
def test_more_names_than_a_page(s3_server: S3Server, counters: Counters) -> None:
    blobs = ObjectBlobs(s3_server.url(uuid.uuid4().hex), s3_server.options, RetrySettings(), counters)
    names = [f"runs/{n:05}" for n in range(1100)]
    for name in names:
        blobs.put(name, b"")
    assert [info.name for info in blobs.list("runs/")] == names
    assert [info.name for info in blobs.list("runs/", names[1049])] == names[1050:]
    before = counters.get(TIER_REQUESTS, "object")
    blobs.delete([*names, "runs/never"])
    assert counters.get(TIER_REQUESTS, "object") == before + 2
    assert list(blobs.list("")) == []


@pytest.mark.s3
def test_a_missing_bucket_and_wrong_keys_are_refused(s3_server: S3Server, counters: Counters) -> None:
    nowhere = ObjectBlobs("s3://no-such-bucket/x", s3_server.options, RetrySettings(), counters)
    stranger = ObjectBlobs(s3_server.url("x"), {**s3_server.options, "secret_access_key": "wrong"}, RetrySettings(), counters)
    for blobs in (nowhere, stranger):
        with pytest.raises(Refused):
            blobs.get("log/1")
        with pytest.raises(Refused):
            list(blobs.list(""))
    with pytest.raises(Refused):
        stranger.create("log/1", b"x")


@pytest.mark.s3
def test_the_whole_stack(s3_server: S3Server, tmp_path: Path, counters: Counters) -> None:
    settings = StoreSettings(
        cache=CacheSettings(str(tmp_path / "disk"), 1 << 20), tmpfs=CacheSettings(str(tmp_path / "fast"), 1 << 18, "frequency")
    )
    url = s3_server.url(uuid.uuid4().hex)
    blobs = open_blobs(
        url, settings, options=s3_server.options, clock=SystemClock(), randomness=SystemRandomness(), counters=counters
    )
    data = os.urandom(500_000)
    blobs.create("runs/a", data)
    for _ in range(3):
        assert blobs.get_ranges("runs/a", [(1000, 50)])[0].to_pybytes() == data[1000:1050]
        assert blobs.get("runs/a").to_pybytes() == data
    found = counters.snapshot()
    assert found["tmpfs"]["tier_hits"] == 2
    assert found["disk"] == {**found["disk"], "tier_hits": 2, "tier_misses": 2}
    assert found["object"]["tier_requests"] == 3
    assert blobs.url == url
