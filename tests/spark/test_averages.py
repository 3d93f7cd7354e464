"""Averages of decimals as Spark itself computes them."""

from decimal import Decimal, localcontext
from random import Random

import numpy as np
import pyarrow as pa

import floodplain as fp
from tests.operators.aggregates.test_averages import KINDS, numbers
from tests.operators.aggregates.test_functions import aggregated


def test_averages_of_decimals_are_sparks(spark):
    """To the last digit, and in its type; a scale near 38 shows how Spark rounds."""
    with localcontext(prec=100):
        random = Random(8)
        columns = {
            f"v{i}": pa.array(numbers(random, p, s, 400), pa.decimal128(p, s)) for i, (p, s) in enumerate([*KINDS, (38, 35)])
        }
        ties = [Decimal(random.randint(1, 9)).scaleb(-36) for _ in range(400)]
    columns["ties"] = pa.array(ties, pa.decimal128(38, 36))
    rows = pa.table({"g": np.arange(400) % 13, **columns, "t": np.arange(400)})
    averages = ", ".join(f"avg({name}) as {name}" for name in columns)
    spark.createDataFrame(rows).createOrReplaceTempView("decimals")
    found = spark.sql(f"select g, {averages} from decimals group by g").toArrow()
    expected = {row.pop("g"): row for row in found.to_pylist()}
    assert aggregated(rows, {name: fp.avg(name) for name in columns}, 3) == expected
    assert [fp.avg(name).output([rows.schema.field(name).type]) for name in columns] == [
        found.schema.field(name).type for name in columns
    ]
