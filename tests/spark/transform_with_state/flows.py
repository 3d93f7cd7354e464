"""Queries that run on Spark itself or on the drop-in, over JSON files."""

import contextlib
import json

import floodplain as fp

ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
}
"""The only state store of Spark's that has this API."""
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
SIDES = ("spark", "ours")


@contextlib.contextmanager
def conf(spark, settings):
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


class Flow:
    """A processor over the files of a folder, on one side."""

    def __init__(self, spark, folder, which, processor, schema, output, mode, *, pandas=False):
        self.spark, self.folder, self.which = spark, folder, which
        self.processor, self.schema, self.output, self.mode, self.pandas = processor, schema, output, mode, pandas
        self.seen = []
        """(number, rows) of each batch that came out."""
        (folder / "in").mkdir(exist_ok=True)

    def feed(self, number, rows):
        (self.folder / "tmp").write_text("\n".join(map(json.dumps, rows)))
        (self.folder / "tmp").rename(self.folder / "in" / f"{number}.json")

    def start(self, state="state", name=None, **trigger):
        rows = self.spark.readStream.schema(self.schema).json(str(self.folder / "in"))
        grouped = rows.withWatermark("at", "0 seconds").groupBy("k")
        frame = self._transformed(grouped, (self.processor, self.output, "append", self.mode))
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.folder / self.which / state))
        if name is not None:
            writer = writer.queryName(name)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _transformed(self, grouped, arguments):
        if self.which == "ours":
            return (fp.transform_with_state_in_pandas if self.pandas else fp.transform_with_state)(grouped, *arguments)
        return (grouped.transformWithStateInPandas if self.pandas else grouped.transformWithState)(*arguments)

    def _keep(self, rows, number):
        self.seen.append((number, sorted(tuple(row) for row in rows.collect())))
