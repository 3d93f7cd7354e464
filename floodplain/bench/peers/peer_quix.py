"""The peer Quix Streams. Runs in its own environment, without Floodplain; ``bench.peers`` has its input and output.

The events are written to a Kafka topic of two partitions before the timed part. Two processes of one consumer group read one
partition each and write to another topic, from which the answer is read afterwards. State is in RocksDB on this machine;
changelog topics are off. Each row of the answer has its output time, by a clock that all processes of a machine share.
"""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from quixstreams import Application

IDLE_S = 6.0
"""A worker ends when no event came for this long."""


def main():
    task = json.loads(sys.argv[1])
    if len(sys.argv) > 2:
        work(task)
        return
    began = time.perf_counter()
    admin = AdminClient({"bootstrap.servers": task["servers"]})
    for made in admin.create_topics([NewTopic(name, task["workers"], 1) for name in ("events", "answer")]).values():
        made.result()
    put_events(task)
    with ExitStack() as stack:
        command = [sys.executable, "-P", __file__, sys.argv[1], "work"]
        workers = [stack.enter_context(subprocess.Popen(command, stdout=sys.stderr)) for _ in range(task["workers"])]
        codes = [worker.wait() for worker in workers]
    if any(codes):
        sys.exit(f"workers ended with {codes}")
    whole = time.perf_counter() - began - IDLE_S
    write_answer(task)
    print(json.dumps({"whole_seconds": whole, "version": version("quixstreams"), "answer": "parquet"}))


def put_events(task):
    """Writes the events to the topic by key. The value is an amount, or whether it is an impression, with its time."""
    out = Producer({"bootstrap.servers": task["servers"], "linger.ms": 50, "queue.buffering.max.messages": 10_000_000})
    rows = pa.concat_tables([pq.read_table(path) for path in (*task["warm"], *task["timed"])])
    if task["workload"] == "count":
        keys, values = rows.column("key").to_pylist(), rows.column("amount").to_pylist()
    else:
        keys = rows.column("ad").cast(pa.string()).to_pylist()
        shown = [kind == "impression" for kind in rows.column("kind").to_pylist()]
        values = zip(shown, rows.column("at_ms").to_pylist(), strict=True)
    for key, value in zip(keys, values, strict=True):
        out.produce("events", key=key, value=json.dumps(value))
    out.flush()


def work(task):
    app = Application(
        task["servers"],
        consumer_group="peer",
        auto_offset_reset="earliest",
        auto_create_topics=False,
        state_dir=Path(task["output"]) / "state",
        use_changelog_topics=False,
        loglevel="WARNING",
    )
    events = app.dataframe(app.topic("events", key_deserializer="str", value_deserializer="json"))
    if task["workload"] == "count":
        made = events.apply(count, stateful=True)
    else:
        made = events.apply(join(task["within_ms"], task["disorder_ms"]), stateful=True, expand=True)
    made.to_topic(app.topic("answer", key_serializer="str", value_serializer="json"))
    app.run(timeout=IDLE_S, collect=False)


def now_ms():
    return int(time.perf_counter() * 1000)


def count(amount, state):
    n, total = state.get("counted", (0, 0))
    counted = (n + 1, total + amount)
    state.set("counted", counted)
    return [*counted, now_ms()]


def join(within_ms, disorder_ms):
    """``join_interval`` misses a click that arrives before its impression, so each side is buffered in a list here."""

    def joined(value, state):
        impression, at = value
        newest, shown, clicks = state.get("sides", (0, [], []))
        if impression:
            pairs = [[at, click, now_ms()] for click in clicks if at <= click <= at + within_ms]
            shown.append(at)
        else:
            pairs = [[other, at, now_ms()] for other in shown if other <= at <= other + within_ms]
            clicks.append(at)
        newest = max(newest, at)
        oldest = newest - within_ms - disorder_ms
        state.set("sides", (newest, [time for time in shown if time >= oldest], [time for time in clicks if time >= oldest]))
        return pairs

    return joined


def write_answer(task):
    """Writes the records of the topic to a Parquet file."""
    counting = task["workload"] == "count"
    settings = {"bootstrap.servers": task["servers"], "group.id": "answer", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.subscribe(["answer"])
    rows, ended = [], set()
    while len(ended) < task["workers"]:
        for message in consumer.consume(10_000, 1.0):
            if message.error():
                ended.add(message.partition())
            else:
                key = message.key().decode()
                rows.append((key if counting else int(key), *json.loads(message.value())))
    consumer.close()
    names = ("key", "n", "total") if counting else ("ad", "impression", "click")
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, [*names, "came_ms"]), Path(task["output"]) / "0.parquet")


if __name__ == "__main__":
    main()
