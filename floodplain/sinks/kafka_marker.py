"""The last epoch that was published to Kafka, kept in a topic so that it commits with the records of its epoch.

A consumer group's offset would do without a topic, but brokers forget the offsets of a group with no members after a week:
a driver that was down for longer could publish an epoch twice. A compacted topic keeps the last record of a key for ever.
"""

from collections.abc import Callable, Mapping
from typing import Any

from floodplain.clock import SystemClock
from floodplain.errors import Refused, Unavailable
from floodplain.sinks.base import required

WAIT_S = 60.0
_TAIL = 16
"""Offsets read first, from the end. Eight times as many each time the marker is not among them."""


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
        """The topic, made if it is not there. Raises ``Refused`` for one that would forget."""
        admin = self._admin.AdminClient(_without_producer(self._client))
        wanted = self._admin.NewTopic(self._topic, num_partitions=1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([wanted], request_timeout=WAIT_S)[self._topic].result()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise Refused(
                    f"the marker topic {self._topic} cannot be created: {error}; create it with one partition and "
                    "cleanup.policy=compact, or name another with marker_topic"
                ) from error
        policy = self._settled(lambda: self._policy(admin))
        if policy != "compact":
            raise Refused(f"the marker topic {self._topic} has cleanup.policy={policy}: it must be compact")

    def _policy(self, admin: Any) -> str:
        resource = self._admin.ConfigResource(self._admin.ResourceType.TOPIC, self._topic)
        return str(admin.describe_configs([resource], request_timeout=WAIT_S)[resource].result()["cleanup.policy"].value)

    def setting_of(self, topic: str, name: str) -> str | None:
        """A setting of a topic, as the broker has it; None where we may not ask."""
        resource = self._admin.ConfigResource(self._admin.ResourceType.TOPIC, topic)
        admin = self._admin.AdminClient(_without_producer(self._client))
        try:
            return str(admin.describe_configs([resource], request_timeout=WAIT_S)[resource].result()[name].value)
        except (self._kafka.KafkaException, KeyError):
            return None

    def _settled(self, ask: Callable[[], Any]) -> Any:
        """The answer of a broker that may not have heard of a new topic yet."""
        deadline_s = self._clock.monotonic_s() + WAIT_S
        codes = self._kafka.KafkaError
        while True:
            try:
                return ask()
            except self._kafka.KafkaException as error:
                code = error.args[0].code()
                passing = (
                    codes.UNKNOWN_TOPIC_OR_PART,
                    codes._UNKNOWN_PARTITION,
                    codes._UNKNOWN_TOPIC,
                    codes.LEADER_NOT_AVAILABLE,
                )
                if code not in passing or self._clock.monotonic_s() > deadline_s:
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
        place = self._kafka.TopicPartition(self._topic, 0)
        first, end = self._settled(lambda: consumer.get_watermark_offsets(place, WAIT_S))
        tail = _TAIL
        while True:
            start = max(first, end - tail)
            found = self._read(consumer, start, end)
            if found or start == first:
                return found
            tail *= 8

    def _read(self, consumer: Any, start: int, end: int) -> int:
        """The largest epoch between two offsets. Waits while another's transaction hides some of them."""
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
            # Beyond the last record there are only ends of transactions, which the position passes by itself.
            position = max(position, consumer.position([self._kafka.TopicPartition(self._topic, 0)])[0].offset)
            if self._clock.monotonic_s() > deadline_s:
                raise Unavailable(f"the marker topic {self._topic} could be read up to offset {position} of {end} only")
        return newest


def _without_producer(client: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a producer's configuration that other clients take: where the brokers are and how to be let in."""
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
