"""Output as Kafka records: one transaction per epoch, with the epoch's number inside it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodplain.errors import BadInput, Fenced, Refused, Unavailable
from floodplain.sinks.base import Sink, ahead_of_state, required
from floodplain.sinks.kafka_marker import Marker
from floodplain.sinks.kafka_records import Records, RecordSizes
from floodplain.sinks.row_checks import RowCheck
from floodplain.sinks.staged import staged_batches
from floodplain.tiers.blobs import Blobs

TRIES = 5
"""Transactions tried for one epoch. Each is aborted before the next begins."""
LEAST_BYTES = 1000
"""The smallest ``message.max.bytes`` that the client accepts."""
WAIT_S = 60.0
"""Timeout of one request to the broker."""
_DEFAULTS = {
    "acks": "all",
    "compression.type": "lz4",
    "linger.ms": 20,
    "message.max.bytes": 1_000_000,  # the client's own default; explicit, because the row check depends on it
    "partitioner": "murmur2_random",  # that of Java clients, so that a key goes to the same partition
    "queue.buffering.max.kbytes": 64 << 10,  # bounds the memory of an epoch, however large it is
    "transaction.timeout.ms": 300_000,
}
_SET_BY_SINK = ("bootstrap.servers", "transactional.id", "enable.idempotence")


class KafkaSink(Sink):
    """Records of a Kafka topic. Exactly once for consumers that read committed records only (``isolation.level``).

    The transaction of an epoch also writes the epoch's number to a marker topic. A new driver first fences older ones: the broker
    aborts their open transactions and refuses new ones (``init_transactions``). Only then does it read the marker, which can no
    longer change, so it knows whether the last epoch was published. An epoch without rows makes no transaction: the number of
    the next one covers it.

    ``key`` and ``value`` name columns. A single column of text or bytes is sent unchanged; any other column, or several, as a
    JSON object. By default the value is all columns, and a record has no key. But an output with a column ``value`` of text or
    bytes is handled as by Spark's Kafka sink, with the columns ``key``, ``value``, ``headers`` and ``partition``. ``headers`` are
    added to every record; ``config`` is passed to the client. ``marker_topic``: by default named after topic and state; it has
    one partition, is compacted, and is created if absent.
    """

    def __init__(
        self,
        servers: str | Iterable[str],
        topic: str,
        key: str | Sequence[str] | None = None,
        value: str | Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        marker_topic: str = "",
    ) -> None:
        if not servers or not topic:
            raise BadInput('write("kafka") needs servers and a topic: write("kafka", servers="localhost:9092", topic="out")')
        reserved = [name for name in config or {} if name in _SET_BY_SINK]
        if reserved:
            raise BadInput(f"the sink kafka sets {', '.join(reserved)} itself: remove it from config")
        self._kafka = required("confluent_kafka", "kafka")
        self._client = {**(config or {}), "bootstrap.servers": servers if isinstance(servers, str) else ",".join(servers)}
        self._topic = topic
        self._columns = (_names(key), _names(value))
        self._headers = dict(headers or {})
        self._marker_topic = marker_topic
        self._app = ""
        self._producer: Any = None
        self._published = 0
        self._most_bytes = int({**_DEFAULTS, **self._client}["message.max.bytes"])
        self._partitions = 1
        self._fenced: Fenced | None = None

    @property
    def target(self) -> str:
        return self._topic

    def check(self, schema: pa.Schema) -> None:
        Records(schema, *self._columns, self._headers)

    def row_check(self, schema: pa.Schema) -> RowCheck:
        records = Records(schema, *self._columns, self._headers)
        return RecordSizes(records, self._topic, self._most_bytes, self._partitions)

    def prepare(self, app: str, committed: int, schema: pa.Schema) -> None:
        self.check(schema)
        self._app, self._fenced = app, None
        self._marker = Marker(self._client, self._marker_topic or f"{self._topic}-epochs-{app}", app)
        self._marker.create()
        transactional = {**_DEFAULTS, **self._client, "transactional.id": f"floodplain-{app}-{self._topic}"}
        self._producer = self._kafka.Producer(transactional)
        self._check_topic()
        self._most_bytes = self._limit_bytes()
        if self._most_bytes < int(transactional["message.max.bytes"]):
            # The client also bounds its batches by it, and the broker refuses a batch that is too large.
            self._producer = self._kafka.Producer({**transactional, "message.max.bytes": max(self._most_bytes, LEAST_BYTES)})
        self._call(lambda: self._producer.init_transactions(WAIT_S))
        self._published = self._marker.read()
        if self._published > committed:
            raise ahead_of_state(f"topic {self._topic}", self._published, committed)

    def publish(self, epoch: int, staged: Sequence[str], blobs: Blobs, schema: pa.Schema) -> None:
        if self._fenced is not None:
            raise self._fenced
        if not staged or self._published >= epoch:
            return
        records = Records(schema, *self._columns, self._headers)
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                self._call(self._producer.begin_transaction)
                for batch in staged_batches(staged, blobs, schema):
                    for record in records.of(batch):
                        self._send({"topic": self._topic, **record})
                self._send(self._marker.record(epoch))
                self._call(lambda: self._producer.commit_transaction(WAIT_S))
            except _Abortable as error:
                failure = error
                self._call(lambda: self._producer.abort_transaction(WAIT_S))
            except BaseException as error:
                self._give_up()
                self._fenced = error if isinstance(error, Fenced) else None
                raise
            else:
                self._published = epoch
                return
        raise Unavailable(f"epoch {epoch} could not be published to topic {self._topic} in {TRIES} transactions: {failure}")

    def close(self) -> None:
        """An open transaction, if any, is aborted by the next driver, or by the broker after its timeout."""
        self._producer = None

    def _send(self, record: Mapping[str, Any]) -> None:
        while True:
            try:
                return self._call(lambda: self._producer.produce(**record))
            except BufferError:
                self._producer.poll(0.1)

    def _call(self, call: Any) -> None:
        """Calls the client, with retries. Raises ``_Abortable`` if the transaction must be aborted."""
        for _ in range(TRIES):
            try:
                call()
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
                if error.retriable():
                    last = error
                    continue
                raise self._error(error) from raised
            else:
                return
        raise Unavailable(f"Kafka did not answer for topic {self._topic}: {last}")

    def _error(self, error: Any) -> Exception:
        codes = self._kafka.KafkaError
        if error.code() in (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH):
            return Fenced(f"another driver publishes to topic {self._topic} for this state now; this one published nothing more")
        if error.txn_requires_abort():
            return _Abortable(str(error))
        return Refused(f"Kafka refused to publish to topic {self._topic}: {error}")

    def _give_up(self) -> None:
        """Aborts the transaction, so that consumers do not wait for it. Ignores errors: the caller raises the first one."""
        try:
            self._producer.abort_transaction(WAIT_S)
        except self._kafka.KafkaException:
            return

    def _check_topic(self) -> None:
        """Raises ``BadInput`` if the topic does not exist and the broker does not create it: the first epoch would time out."""
        for _ in range(TRIES):
            topic = self._topics().topics[self._topic]
            if topic.error is None:
                self._partitions = len(topic.partitions)
                return
            self._producer.poll(0.5)
        raise BadInput(f"topic {self._topic} cannot be written to: {topic.error}; create it, or check the permissions")

    def _limit_bytes(self) -> int:
        """The largest record: the limit of the client or, if the broker lets us read it, of the topic if that is smaller."""
        mine = int({**_DEFAULTS, **self._client}["message.max.bytes"])
        theirs = self._marker.setting_of(self._topic, "max.message.bytes")
        return mine if theirs is None else min(mine, int(theirs))

    def _topics(self) -> Any:
        try:
            return self._producer.list_topics(self._topic, WAIT_S)
        except self._kafka.KafkaException as error:
            raise Unavailable(f"Kafka at {self._client['bootstrap.servers']} does not answer: {error}") from error


class _Abortable(Exception):
    """The transaction must be aborted; a retry may succeed."""


def _names(columns: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    return (columns,) if isinstance(columns, str) else tuple(columns)
