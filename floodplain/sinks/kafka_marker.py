"""The last epoch published to Kafka, in a topic of its own, so that it commits in the same transaction as the epoch's records.

The offset of a consumer group would need no topic, but brokers delete the offsets of a group without members after a week: a
driver that was down for longer could publish an epoch twice. A compacted topic keeps the last record of a key for ever.
"""

from collections.abc import Callable, Mapping
from typing import Any

from floodplain.clock import SystemClock
from floodplain.errors import Refused, Unavailable
from floodplain.sinks.base import required

WAIT_S = 60.0
_TAIL = 16
"""Offsets read first, from the end; eight times as many in each further attempt, until the marker is among them."""


class Marker:
    """A one-partition compacted topic; ``app`` is the key, the epoch the value."""

    def __init__(self, client: Mapping[str, Any], topic: str, app: str) -> None:
        self._kafka = required("confluent_kafka", "kafka")
        self._admin = required("confluent_kafka.admin", "kafka")
        self._client = dict(client)
        self._topic = topic
        self._app = app
        self._clock = SystemClock()

    def record(self, epoch: int) -> dict[str, Any]:
        return {"topic": self._topic, "partition": 0, "key": self._app.encode(), "value": str(epoch).encode()}

    def create(self) -> None:
        """Creates the topic if it is absent. Raises ``Refused`` for a topic that is not compacted."""
        admin = self._admin.AdminClient(_without_producer(self._client))
        topic = self._admin.NewTopic(self._topic, num_partitions=1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([topic], request_timeout=WAIT_S)[self._topic].result()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise Refused(
                    f"the marker topic {self._topic} cannot be created: {error}; create it with one partition and "
                    "cleanup.policy=compact, or name another with marker_topic"
                ) from error
        policy = self._retry(lambda: self._policy(admin))
        if policy != "compact":
            raise Refused(
                f"the marker topic {self._topic} has cleanup.policy={policy}: it must be compact; change it, or name another "
                "with marker_topic"
            )

    def _policy(self, admin: Any) -> str:
        resource = self._admin.ConfigResource(self._admin.ResourceType.TOPIC, self._topic)
        return str(admin.describe_configs([resource], request_timeout=WAIT_S)[resource].result()["cleanup.policy"].value)

    def setting_of(self, topic: str, name: str) -> str | None:
        """A setting of a topic; None if the broker does not let us read it."""
        resource = self._admin.ConfigResource(self._admin.ResourceType.TOPIC, topic)
        admin = self._admin.AdminClient(_without_producer(self._client))
        try:
            return str(admin.describe_configs([resource], request_timeout=WAIT_S)[resource].result()[name].value)
        except (self._kafka.KafkaException, KeyError):
            return None

    def _retry(self, request: Callable[[], Any]) -> Any:
        """Retries while brokers do not know a new topic yet. Raises ``Unavailable`` after a timeout."""
        deadline_s = self._clock.monotonic_s() + WAIT_S
        codes = self._kafka.KafkaError
        while True:
            try:
                return request()
            except self._kafka.KafkaException as error:
                code = error.args[0].code()
                transient = (
                    codes.UNKNOWN_TOPIC_OR_PART,
                    codes._UNKNOWN_PARTITION,
                    codes._UNKNOWN_TOPIC,
                    codes.LEADER_NOT_AVAILABLE,
                )
                if code not in transient or self._clock.monotonic_s() > deadline_s:
                    raise Unavailable(f"the marker topic {self._topic} cannot be read: {error}") from error
            self._clock.sleep_s(0.05)

    def read(self) -> int:
        """The last epoch published, 0 if none. Requires: no transaction of this ``app`` is open."""
        consumer = self._kafka.Consumer(
            {
                **_without_producer(self._client),
                "group.id": f"floodplain-{self._app}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )
        try:
            return self._last(consumer)
        except self._kafka.KafkaException as error:
            raise Unavailable(f"the marker topic {self._topic} cannot be read: {error}") from error
        finally:
            consumer.close()

    def _last(self, consumer: Any) -> int:
        partition = self._kafka.TopicPartition(self._topic, 0)
        first, end = self._retry(lambda: consumer.get_watermark_offsets(partition, WAIT_S))
        tail = _TAIL
        while True:
            start = max(first, end - tail)
            epoch = self._read(consumer, start, end)
            if epoch or start == first:
                return epoch
            tail *= 8

    def _read(self, consumer: Any, start: int, end: int) -> int:
        """The largest epoch between two offsets. Waits while an open transaction of another producer hides some of them."""
        consumer.assign([self._kafka.TopicPartition(self._topic, 0, start)])
        newest = 0
        deadline_s = self._clock.monotonic_s() + WAIT_S
        position = start
        while position < end:
            message = consumer.poll(0.2)
            if message is not None:
                if message.error():
                    raise self._kafka.KafkaException(message.error())
                if message.key() == self._app.encode():
                    newest = max(newest, int(message.value()))
            # After the last record there are only transaction markers; the position advances past them by itself.
            position = max(position, consumer.position([self._kafka.TopicPartition(self._topic, 0)])[0].offset)
            if self._clock.monotonic_s() > deadline_s:
                raise Unavailable(
                    f"the marker topic {self._topic} could be read up to offset {position} of {end} only, within {WAIT_S:.0f} s: "
                    "a transaction of another producer may be open; start again once it has ended"
                )
        return newest


def _without_producer(client: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a producer's configuration that other clients share: addresses, authentication and logging."""
    shared = (
        "bootstrap.servers",
        "client.id",
        "security.",
        "sasl.",
        "ssl.",
        "socket.",
        "broker.",
        "oauth_cb",
        "debug",
        "logger",
        "log",
    )
    return {name: value for name, value in client.items() if name.startswith(shared)}
