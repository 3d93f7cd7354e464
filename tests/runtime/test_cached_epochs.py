"""Epochs on an object store with a cache: what tasks and compactions of this machine write is never fetched."""

from pathlib import Path

import pytest

from floodplain.runtime.store_upkeep import StoreUpkeep
from floodplain.settings import CacheSettings, StoreSettings
from tests.runtime.test_tier_use import ROWS, ObjectKit, counting
from tests.tiers.fake_s3 import FakeS3, serving

EPOCHS = 16


def fetched_runs(fake: FakeS3) -> int:
    return sum(method == "GET" and "/runs/" in path for method, path in fake.requests)


@pytest.mark.parametrize("inline_bytes", [0, 64 << 10], ids=["objects of tasks", "inside reports"])
@pytest.mark.parametrize("cached", [True, False])
def test_slots_that_stay_fetch_nothing_of_the_last_epochs(tmp_path: Path, inline_bytes: int, cached: bool) -> None:
    cache = CacheSettings(str(tmp_path / "cache"), 32 << 20) if cached else None
    with serving() as fake:
        kit = ObjectKit(
            fake, counting, rows=ROWS, slots=3, settings=StoreSettings(key_groups=16, inline_bytes=inline_bytes, cache=cache)
        )
        upkeep = StoreUpkeep(kit.store, lambda: None)
        for number in range(EPOCHS):
            outputs = kit.epoch([{"user": f"u{each}", "amount": number} for each in range(20)])
            upkeep.round()
        assert upkeep.concern is None
        assert [row["n"] for rows in outputs.values() for row in rows] == [EPOCHS] * 20
        (runs,) = kit.store.head.runs.values()
        assert len({run.high for run in runs}) < EPOCHS, "some were compacted"
        assert (fetched_runs(fake) == 0) == cached
