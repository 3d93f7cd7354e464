"""The sink ``foreach_batch``: a user's function gets each epoch as a DataFrame."""

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from floodplain.errors import UserError
from floodplain.sinks.base import Sink
from floodplain.sinks.staged import check_staged, read_staged, staged_path
from floodplain.tiers.blobs import Blobs


class ForeachBatchSink(Sink):
    """Calls a function with a DataFrame and the epoch. At least once: keep the epoch with what you write to tell a repeat.

    Where the state is in a directory the executors read the staged files: the driver has checked them just before, and executors
    check each page. Else the rows go through the driver. Either way the DataFrame is good until the function returns.
    """

    replaceable = True

    def __init__(self, function: Callable[[DataFrame, int], None], spark: SparkSession) -> None:
        self._function = function
        self._spark = spark

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        rows = self._rows(staged, blobs, schema)
        try:
            self._function(rows, epoch)
        except Exception as error:
            raise UserError.in_function("foreach_batch", self._function, error, epoch) from error

    def _rows(self, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> DataFrame:
        wanted = from_arrow_schema(schema)
        places = {name: staged_path(name, blobs) for name in sorted(staged)}
        local = {name: place for name, place in places.items() if place is not None}
        if staged and len(local) == len(places):
            for name, path in local.items():
                check_staged(name, blobs, path)
            reader = self._spark.read.schema(wanted).option("parquet.page.verify-checksum.enabled", "true")
            return reader.parquet(*(f"file://{path}" for path in local.values()))
        rows = read_staged(staged, blobs, schema)
        return self._spark.createDataFrame(rows, wanted)
