"""Kafka topics, on a real broker: each epoch is one transaction, and takes effect once whatever crashes."""

import datetime
import decimal
import itertools
import json
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from floodplain.errors import BadInput, Fenced, Refused
from floodplain.sinks import kafka as sink_kafka
from floodplain.sinks.kafka import KafkaSink
from floodplain.sinks.kafka_marker import Marker
from floodplain.sinks.kafka_records import Records
from floodplain.tiers.blobs import Blobs
from tests.kafka_broker import create_topic
from tests.sinks.staging import APP, SCHEMA, crash_points, memory_blobs, rows, stage

pytestmark = pytest.mark.kafka
_numbers = itertools.count()


@pytest.fixture
def blobs() -> Blobs:
    return memory_blobs()


@pytest.fixture
def topic(kafka: str) -> str:
    return create_topic(kafka, f"out{next(_numbers)}")


def prepared(kafka: str, topic: str, committed: int = 0, schema: pa.Schema = SCHEMA, **options: Any) -> KafkaSink:
    sink = KafkaSink(kafka, topic, **options)
    sink.prepare(APP, committed, schema)
    return sink


def publish(sink: KafkaSink, epoch: int, blobs: Blobs) -> None:
    sink.publish(epoch, stage(blobs, epoch, rows(epoch, 0), rows(epoch, 1)), blobs, SCHEMA)


def consume(kafka: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All records up to the end as it is now."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka, "group.id": "tests", "isolation.level": isolation})
    parts = [confluent_kafka.TopicPartition(topic, n, 0) for n in consumer.list_topics(topic, 10).topics[topic].partitions]
    ends = {part.partition: consumer.get_watermark_offsets(part, 10)[1] for part in parts}
    consumer.assign(parts)
    found = []
    while any(max(part.offset, 0) < ends[part.partition] for part in consumer.position(parts)):
        message = consumer.poll(0.1)
        if message is not None:
            assert not message.error(), message.error()
            found.append(message)
    consumer.close()
    return found


def read(kafka: str, topic: str) -> list[tuple[str, int]]:
    values = [json.loads(message.value()) for message in consume(kafka, topic)]
    return sorted((value["user"], value["n"]) for value in values)


def expected(*epochs: int) -> list[tuple[str, int]]:
    return sorted((row["user"], row["n"]) for e in epochs for slot in (0, 1) for row in rows(e, slot).to_pylist())


def test_an_epoch_is_published_once_however_often_it_is_asked_for(kafka, topic, blobs):
    sink = prepared(kafka, topic)
    publish(sink, 1, blobs)
    publish(sink, 1, blobs)
    sink.publish(2, [], blobs, SCHEMA)
    sink.close()
    again = prepared(kafka, topic, committed=2)
    publish(again, 1, blobs)
    publish(again, 3, blobs)
    assert read(kafka, topic) == expected(1, 3)


def test_a_crash_between_any_two_steps_loses_and_repeats_nothing(kafka, topic, blobs, monkeypatch):
    """The steps are those of the producer; a crash leaves its transaction open, as a killed process does."""

    class Producer(confluent_kafka.Producer):
        def begin_transaction(self, *args):
            return super().begin_transaction(*args)

        def produce(self, *args, **options):
            return super().produce(*args, **options)

        def commit_transaction(self, *args):
            return super().commit_transaction(*args)

    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    monkeypatch.setattr(KafkaSink, "_give_up", lambda self: None)
    steps = [(Producer, "begin_transaction"), (Producer, "produce"), (Producer, "commit_transaction")]
    dead = []  # kept, so that nothing tidies up behind them

    def act(epoch: int) -> None:
        dead.append(prepared(kafka, topic, epoch))
        recover(dead[-1], epoch)

    def recover(sink: KafkaSink, epoch: int) -> None:
        sink.publish(epoch, stage(blobs, epoch, rows(epoch, 0, 1), rows(epoch, 1, 1)), blobs, SCHEMA)

    crashes = []
    for epoch, where in crash_points(steps, monkeypatch, act):
        crashes.append(where)
        recover(prepared(kafka, topic, epoch), epoch)
        assert read(kafka, topic) == sorted((f"u{slot}_0", e * 100) for e in range(1, epoch + 1) for slot in (0, 1)), where
    assert len(crashes) == 2 * (1 + 2 + 1 + 1), crashes  # begin, two rows, the marker, commit: before and after


def test_a_superseded_driver_publishes_nothing(kafka, topic, blobs, monkeypatch):
    """The first is paused in the middle of its transaction; the second takes over and publishes the same epoch and the next."""
    first = prepared(kafka, topic)
    marker = Marker.record

    def paused(self, epoch):
        monkeypatch.setattr(Marker, "record", marker)
        second = prepared(kafka, topic, 1)
        publish(second, 1, blobs)
        publish(second, 2, blobs)
        return self.record(epoch)

    monkeypatch.setattr(Marker, "record", paused)
    with pytest.raises(Fenced, match="another driver publishes"):
        publish(first, 1, blobs)
    assert read(kafka, topic) == expected(1, 2)
    with pytest.raises(Fenced):
        publish(first, 3, blobs)
    assert read(kafka, topic) == expected(1, 2)


def test_a_transaction_that_must_be_aborted_is_tried_again(kafka, topic, blobs, monkeypatch):
    sink = prepared(kafka, topic)
    marker = Marker.record
    failed = []

    def once(self, epoch):
        if not failed:
            failed.append(epoch)
            sink._producer.flush()
            raise sink_kafka._Abortable("a record was not delivered")
        return marker(self, epoch)

    monkeypatch.setattr(Marker, "record", once)
    publish(sink, 1, blobs)
    assert failed and read(kafka, topic) == expected(1)
    assert len(consume(kafka, topic, "read_uncommitted")) == 12, "the first six were aborted"


def test_an_error_of_ours_leaves_no_transaction_open(kafka, topic, blobs):
    sink = prepared(kafka, topic)
    names = stage(blobs, 1, rows(1, 0), rows(1, 1))
    blobs.put(names[1], b"not Parquet")
    with pytest.raises(pa.ArrowInvalid):
        sink.publish(1, names, blobs, SCHEMA)
    assert read(kafka, topic) == []
    publish(sink, 1, blobs)
    assert read(kafka, topic) == expected(1)


def test_an_epoch_larger_than_the_send_queue(kafka, topic, blobs):
    sink = prepared(kafka, topic, config={"queue.buffering.max.messages": 500, "linger.ms": 0})
    sink.publish(1, stage(blobs, 1, rows(1, 0, 10_000)), blobs, SCHEMA)
    assert len(read(kafka, topic)) == 10_000


def test_the_marker_is_found_behind_many_aborted_transactions(kafka, topic, blobs):
    sink = prepared(kafka, topic)
    publish(sink, 7, blobs)
    for _ in range(30):
        sink._producer.begin_transaction()
        sink._producer.produce(**sink._marker.record(8))
        sink._producer.flush()
        sink._producer.abort_transaction()
    assert sink._marker.read() == 7
    with pytest.raises(BadInput, match="has epoch 7 of this state, which is at epoch 6"):
        prepared(kafka, topic, committed=6)


def test_keys_partition_as_javas_clients_do_and_headers_travel(kafka, topic, blobs):
    sink = prepared(kafka, topic, key="user", value=["n"], headers={"from": "floodplain"})
    publish(sink, 1, blobs)
    publish(sink, 2, blobs)
    found = consume(kafka, topic)
    places = {(message.key(), message.partition()) for message in found}
    assert len(places) == 6, "a key has one partition"
    assert {message.partition() for message in found if message.key() == b"u0_0"} == {_murmur2(b"u0_0") % 3}
    assert all(message.headers() == [("from", b"floodplain")] for message in found)
    assert sorted(json.loads(message.value())["n"] for message in found if message.key() == b"u0_1") == [101, 201]


def _murmur2(data: bytes) -> int:
    """As Kafka's Java client computes it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    for place in range(len(data) - 1, whole - 1, -1):
        h ^= data[place] << 8 * (place - whole)
        if place == whole:
            h = h * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_an_output_as_sparks_own_sink_takes_it(kafka, topic, blobs):
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema([("key", pa.binary()), ("value", pa.string()), ("headers", pa.list_(header)), ("partition", pa.int32())])
    table = pa.Table.from_pylist(
        [
            {"key": b"k", "value": "v", "headers": [{"key": "h", "value": b"1"}], "partition": 2},
            {"key": None, "value": None, "headers": None, "partition": 1},
        ],
        schema=schema,
    )
    prepared(kafka, topic, schema=schema).publish(1, stage(blobs, 1, table), blobs, schema)
    found = [(m.partition(), m.key(), m.value(), m.headers()) for m in consume(kafka, topic)]
    assert sorted(found) == [(1, None, None, None), (2, b"k", b"v", [("h", b"1")])]


def test_values_as_json():
    table = pa.table(
        {
            "at": pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)], pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("1.10")], pa.decimal128(5, 2)),
            "tags": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "raw": pa.array([b"\xff"]),
            "none": pa.array([None], pa.int64()),
        }
    )
    (record,) = Records(table.schema, None, None, {}).of(table.to_batches()[0])
    assert record == {"value": b'{"at":"2024-01-01T00:00:00Z","price":1.10,"tags":{"a":1},"raw":"/w==","none":null}'}


def test_what_cannot_work_is_refused_before_it_starts(kafka, topic):
    with pytest.raises(BadInput, match="no column nobody: it has user, n"):
        prepared(kafka, topic, key="nobody")
    with pytest.raises(BadInput, match=r"sets transactional\.id itself"):
        KafkaSink(kafka, topic, config={"transactional.id": "mine"})
    forgetful = create_topic(kafka, f"{topic}-forgetful", 1, cleanup_policy="delete")
    with pytest.raises(Refused, match=r"has cleanup\.policy=delete: it must be compact"):
        prepared(kafka, topic, marker_topic=forgetful)
    with pytest.raises(BadInput, match="topic not/possible cannot be written to"):
        prepared(kafka, "not/possible", marker_topic=f"{topic}-marker")


def test_what_the_topic_does_not_take_is_known_before_and_all_else_is_published(kafka, blobs):
    """A topic bounds batches of records, too: many small ones must not become one that is too large."""
    topic = create_topic(kafka, f"small{next(_numbers)}", max_message_bytes="2000")
    sink = prepared(kafka, topic, config={"compression.type": "none"})
    row_check = sink.row_check(SCHEMA)
    most = rows(1, 0, 500).set_column(0, "user", pa.array([f"{'x' * (n % 1700)}{n}" for n in range(500)]))
    assert row_check.first_refused(most) is None
    sink.publish(1, stage(blobs, 1, most), blobs, SCHEMA)
    assert len(read(kafka, topic)) == 500
    large = pa.table({"user": ["a", "x" * 2000], "n": [1, 2]}, schema=SCHEMA)
    assert row_check.first_refused(large) is not None and row_check.first_refused(large)[0] == 1
    with pytest.raises(Refused):
        sink.publish(2, stage(blobs, 2, large), blobs, SCHEMA)
