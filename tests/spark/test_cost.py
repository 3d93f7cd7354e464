"""What Spark tasks and workers ask of an object store comes back: all that the store received, and for whom."""

from collections import Counter
from typing import Any

import pytest

from floodplain.prices import AMAZON
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.spark.runtime import stream
from floodplain.tier_use import COMMIT, PUBLISH, tiers_sum, uses_sum
from tests.processes import Count
from tests.runtime.test_tier_use import KINDS, received
from tests.spark.test_runtime import source, write_inputs
from tests.tiers.fake_s3 import serving


@pytest.mark.spark
@pytest.mark.both_engines
def test_all_that_an_object_store_received_is_counted_by_the_query(spark: Any, tmp_path: Any) -> None:
    write_inputs(tmp_path, 3)
    settings = StoreSettings(key_groups=16, inline_bytes=0, cache=CacheSettings(str(tmp_path / "cache"), 8 << 20))
    with serving() as fake:
        counted = stream(source(spark, tmp_path)).key_by("user").process(Count())
        query = counted.write("parquet", path=str(tmp_path / "out")).start(
            state="s3://bucket/state", options=fake.options, settings=settings, slots=2, trigger={"availableNow": True}
        )
        query.await_termination()
        query.stop()
        shown = query.cost(every="1 second")
        everything = tiers_sum(query._driver.store.counters.tally.uses())["object"]
        seen: Counter[str] = received(fake)
    assert {kind: getattr(everything, kind) for kind in KINDS} == {kind: seen[kind] for kind in KINDS}
    used = uses_sum(*(epoch.used for epoch in query.progress))
    assert used["count"]["object"].puts == 2 * 2 * 3, "two slots write a run and stage output in each of three epochs"
    assert used["count"]["disk"].requests > 0
    assert {COMMIT, PUBLISH} < set(used)
    assert sum(epoch.cost for epoch in query.progress) == pytest.approx(AMAZON.of(tiers_sum(used)["object"]))
    (row,) = [row for row in shown.rows if (row.user, row.tier) == ("count", "object")]
    assert row.cost_per_month > 0
    assert shown.interval_s == 1.0
