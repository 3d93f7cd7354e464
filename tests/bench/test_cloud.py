"""The benchmark ``cloud``: its parts at a size where times mean nothing, on Spark and a real S3 server."""

from typing import Any

import pytest

from floodplain.bench import cloud
from floodplain.clock import SystemClock

TINY = cloud.Sizes(
    keys=2_000,
    factor=2,
    block=1,
    rounds=1,
    delay_ms=1,
    more_rows=50,
    request_epochs=4,
    cache_rows=200,
    cache_block=1,
    cache_rounds=1,
    compaction_rows=200,
    compaction_epochs=4,
    only=(cloud.GROWTH, cloud.REQUESTS, cloud.CACHE, cloud.MISSES),
)


@pytest.mark.s3
@pytest.mark.soak
def test_a_tiny_cloud_on_spark(spark: Any) -> None:
    result = cloud.run(TINY, SystemClock(), spark)
    ratios = {"s3_epoch_growth", "s3_vs_directory", "requests_per_epoch", "usd_per_month"}
    assert set(result["ratios"]) == ratios | {"cache_tenth_vs_full", "cache_half_vs_full", "hidden_misses"}
    lanes = (cloud.DIRECTORY, cloud.S3, cloud.LARGE, cloud.HALF, cloud.TENTH, cloud.TENTH_WAITS)
    assert all(result["checks"][f"{lane}_equals_duckdb"] for lane in lanes)
    assert set(result["figures"]["targets"]) == ratios | {"cache_tenth_vs_full"}
    by_user = result["figures"]["requests"]["by_user"]
    assert by_user["driver.commit"]["puts"] >= 1
    assert by_user["count"]["puts"] >= 1
