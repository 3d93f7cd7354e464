"""Rows go to the slots that the store says."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it

from floodplain.keys import hash_columns
from floodplain.spark.exchange import FEW_RANGES, hashed, to_slots
from floodplain.versions.records.assignment import even, groups_of, slot_of_each_group, slots_of

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("slots", "key_groups"), [(1, 1), (1, 8), (2, 256), (FEW_RANGES, 256), (FEW_RANGES + 5, 256)])
def test_a_row_comes_to_its_slot(spark, slots, key_groups):
    keys = pa.array([f"key {number}" for number in range(500)])
    rows = spark.createDataFrame(pa.table({"key": keys}))
    assignment = even(slots, key_groups, 1)
    slotted = to_slots(hashed(rows, ("key",)), assignment, key_groups).select("key", F.spark_partition_id().alias("slot"))
    found = {row.key: row.slot for row in slotted.collect()}
    expected = slots_of(hash_columns([keys]), slot_of_each_group(groups_of(assignment, key_groups), key_groups))
    assert found == dict(zip(keys.to_pylist(), expected.tolist(), strict=True))
    assert slotted.rdd.getNumPartitions() == slots
    assert len(np.unique(expected)) == slots
