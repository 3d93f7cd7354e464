"""The peer PyFlink. Runs in its own environment, without Floodplain; ``bench.peers`` has its input and output.

A keyed process function in Python on the DataStream API, between files that the JVM reads and writes. Python runs inside the JVM
(thread mode), which is about five times as fast as in processes of its own. Two slots of a mini cluster, state on the heap, no
checkpoints. Each row of the answer has its output time.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pyflink
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.common.serialization import Encoder
from pyflink.common.watermark_strategy import Duration, TimestampAssigner
from pyflink.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, FileSource, StreamFormat
from pyflink.datastream.functions import KeyedProcessFunction
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.state = runtime_context.get_state(ValueStateDescriptor("counted", kind))

    def process_element(self, value, ctx):
        n, total = self.state.value() or (0, 0)
        n, total = n + 1, total + value[1]
        self.state.update((n, total))
        yield f"{value[0]},{n},{total},{ctx.timer_service().current_processing_time()}"


class Join(KeyedProcessFunction):
    """Buffers both sides in lists, until the watermark excludes further partners."""

    def __init__(self, within_ms):
        self.within_ms = within_ms

    def open(self, runtime_context):
        self.impressions = runtime_context.get_list_state(ListStateDescriptor("impressions", Types.LONG()))
        self.clicks = runtime_context.get_list_state(ListStateDescriptor("clicks", Types.LONG()))

    def process_element(self, value, ctx):
        kind, ad, at = value
        now, within = ctx.timer_service().current_processing_time(), self.within_ms
        if kind == "impression":
            pairs = [(at, click) for click in self.clicks if at <= click <= at + within]
            self.impressions.add(at)
        else:
            pairs = [(shown, at) for shown in self.impressions if shown <= at <= shown + within]
            self.clicks.add(at)
        # One timer for all rows of a key in a second.
        ctx.timer_service().register_event_time_timer((at + within) // 1000 * 1000 + 1000)
        for shown, click in pairs:
            yield f"{ad},{shown},{click},{now}"

    def on_timer(self, timestamp, ctx):
        for side in (self.impressions, self.clicks):
            times = list(side)
            kept = [at for at in times if at + self.within_ms >= timestamp]
            if len(kept) < len(times):
                side.update(kept)
        return ()


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


def counted(line):
    key, amount = line.split(",")
    return key, int(amount)


def advert(line):
    kind, ad, at = line.split(",")
    return kind, int(ad), int(at)


def results(lines, task):
    if task["workload"] == "count":
        rows = lines.map(counted, Types.TUPLE([Types.STRING(), Types.LONG()]))
        return rows.key_by(lambda row: row[0], Types.STRING()).process(Count(), Types.STRING())
    rows = lines.map(advert, Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]))
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(task["disorder_ms"]))
    timed = rows.assign_timestamps_and_watermarks(late.with_timestamp_assigner(EventTime()))
    return timed.key_by(lambda row: row[1], Types.LONG()).process(Join(task["within_ms"]), Types.STRING())


def main():
    task = json.loads(sys.argv[1])
    began = time.perf_counter()
    settings = {
        "parallelism.default": str(task["workers"]),
        "taskmanager.numberOfTaskSlots": str(task["workers"]),
        "taskmanager.memory.managed.size": "1g",
        "pipeline.object-reuse": "true",
        "state.backend.type": task["backend"],
        "python.execution-mode": "thread",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
    }
    # The interpreter inside the JVM does not know of this environment.
    os.environ["PYTHONPATH"] = str(Path(pyflink.__file__).parents[1])
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), task["input"]).build()
    lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "lines")
    files = FileSink.for_row_format(str(Path(task["output"]) / "answer"), Encoder.simple_string_encoder())
    results(lines, task).sink_to(files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    environment.execute("peer")
    report = {"whole_seconds": time.perf_counter() - began, "version": version("apache-flink"), "answer": "csv_bare"}
    print(json.dumps({**report, "settings": settings}))


if __name__ == "__main__":
    main()
