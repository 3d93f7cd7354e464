"""The Kafka broker of the tests: fetched once, kept outside the repository, run on free ports.

``FLOODPLAIN_TEST_JARS`` names the folder that keeps the jars (default: a folder in the user's cache),
``FLOODPLAIN_TEST_IVY_SETTINGS`` an Ivy settings file, for a machine that needs a mirror.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pyspark
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from floodplain.bench.harness import kafka_broker
from floodplain.bench.harness.maven import Jars, Module, Unfetchable

CLIENTS: tuple[Module, ...] = (("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1"))
"""What Spark's connector needs beside its own two jars and what Spark has."""
CONNECTORS = ((pyspark.__version__, pyspark.__version__), ("4.2.0", "4.0.0"))
"""Versions of the connector and of its token provider: of this Spark, else the newest that work with it."""


def jars() -> Jars:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floodplain-test"
    return Jars(Path(os.environ.get("FLOODPLAIN_TEST_JARS") or default), os.environ.get("FLOODPLAIN_TEST_IVY_SETTINGS"))


def connector_jars() -> list[Path]:
    """Spark's own Kafka source, for ``spark.jars``."""
    reasons = []
    for connector, tokens in CONNECTORS:
        spark = "org.apache.spark"
        own = [(spark, "spark-sql-kafka-0-10_2.13", connector), (spark, "spark-token-provider-kafka-0-10_2.13", tokens)]
        try:
            return jars().fetched(f"connector-{connector}", [*own, *CLIENTS], transitive=False)
        except Unfetchable as reason:
            reasons.append(str(reason))
    raise Unfetchable("; ".join(reasons))


def broker(ports: list[int]) -> AbstractContextManager[str]:
    """Yields the address of a broker. Raises ``Unfetchable`` where it cannot be had."""
    return kafka_broker.broker(ports, jars(), ready=_answers)


def _answers(servers: str) -> bool:
    try:
        AdminClient({"bootstrap.servers": servers}).list_topics(timeout=5)
    except KafkaException:
        return False
    return True


def create_topic(servers: str, name: str, partitions: int = 3, **settings: str) -> str:
    admin = AdminClient({"bootstrap.servers": servers})  # held: it takes its requests along when it goes
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, num_partitions=partitions, config=config)])[name].result()
    return name
