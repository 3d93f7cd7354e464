"""A real Kafka broker for tests, from Maven's central repository: fetched once, kept outside the repository, run on free ports.

Ivy, which pyspark brings, resolves and fetches the jars. ``FLOODPLAIN_TEST_JARS`` names the folder that keeps them (default:
a folder in the user's cache), ``FLOODPLAIN_TEST_IVY_SETTINGS`` an Ivy settings file, for a machine that needs a mirror.
"""

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from floodplain.spark.java import java_home

Module = tuple[str, str, str]
"""Organisation, name, version."""

BROKER: Module = ("org.apache.kafka", "kafka_2.13", "4.3.1")
CLIENTS: tuple[Module, ...] = (("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1"))
"""What Spark's connector needs beside its own two jars and what Spark has."""
CONNECTORS = ((pyspark.__version__, pyspark.__version__), ("4.2.0", "4.0.0"))
"""Versions of the connector and of its token provider: of this Spark, else the newest that work with it."""
START_SECONDS = 60
FETCH_SECONDS = 300


class Unfetchable(Exception):
    """The jars cannot be had here."""


def broker_jars() -> list[Path]:
    return _fetched("kafka-" + BROKER[2], [BROKER], transitive=True)


def connector_jars() -> list[Path]:
    """Spark's own Kafka source, for ``spark.jars``."""
    reasons = []
    for connector, tokens in CONNECTORS:
        spark = "org.apache.spark"
        own = [(spark, "spark-sql-kafka-0-10_2.13", connector), (spark, "spark-token-provider-kafka-0-10_2.13", tokens)]
        try:
            return _fetched(f"connector-{connector}", [*own, *CLIENTS], transitive=False)
        except Unfetchable as reason:
            reasons.append(str(reason))
    raise Unfetchable("; ".join(reasons))


def _fetched(name: str, modules: list[Module], *, transitive: bool) -> list[Path]:
    folder = _cache() / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Complete or absent: several test runs may fetch at the same moment.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            for module in modules:
                _retrieve(module, Path(scratch) / "jars", transitive=transitive)
            try:
                (Path(scratch) / "jars").rename(folder)
            except OSError:
                if not folder.exists():
                    raise
    return sorted(folder.glob("*.jar"))


def _cache() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floodplain-test"
    return Path(os.environ.get("FLOODPLAIN_TEST_JARS") or default)


def _retrieve(module: Module, folder: Path, *, transitive: bool) -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    ivy = next(jars.glob("ivy-*.jar"), None)
    if ivy is None:
        raise Unfetchable(f"pyspark has no Ivy in {jars}")
    settings = os.environ.get("FLOODPLAIN_TEST_IVY_SETTINGS")
    command = [
        *(java(), "-cp", str(ivy), "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(_cache() / "ivy"), "-confs", "default,runtime", "-dependency", *module),
        *(() if transitive else ("-notransitive",)),
        *("-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unfetchable(f"{':'.join(module)} was not there within {FETCH_SECONDS} s") from None
    jar = folder / f"{module[1]}-{module[2]}.jar"
    if done.returncode or not jar.exists():
        told = [line.strip() for line in done.stdout.splitlines() if "not found" in line or "rror" in line]
        raise Unfetchable(f"{':'.join(module)} cannot be fetched: {'; '.join(told[:3]) or done.stderr[-300:]}")


def java() -> str:
    home = java_home(_cache() / "java")
    if home is None:
        raise Unfetchable("no Java 17 or newer")
    return str(home / "bin" / "java")


@contextmanager
def broker(ports: list[int]) -> Iterator[str]:
    """One broker that is its own controller; yields its address. Raises ``Unfetchable`` where it cannot be had."""
    class_path = os.pathsep.join(map(str, broker_jars()))
    home = Path(tempfile.mkdtemp(prefix="fpkafka"))
    settings = home / "server.properties"
    settings.write_text(_settings(home, *ports))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    start = [java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    process = None
    try:
        with (home / "log").open("wb") as log:
            storage = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            subprocess.run([*start, *storage], check=True, stdout=log, stderr=log, timeout=START_SECONDS)
            process = subprocess.Popen([*start, "kafka.Kafka", str(settings)], cwd=home, stdout=log, stderr=log)
        _wait(process, ports[0], home / "log")
        yield f"127.0.0.1:{ports[0]}"
    finally:
        if process is not None:
            process.kill()  # nothing of it is needed any more, and an orderly end takes seconds
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def create_topic(servers: str, name: str, partitions: int = 3, **settings: str) -> str:
    admin = AdminClient({"bootstrap.servers": servers})  # held: it takes its requests along when it goes
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, num_partitions=partitions, config=config)])[name].result()
    return name


def _settings(home: Path, port: int, controller: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(home / "data"),
        "num.partitions": "3",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unfetchable(
                f"the broker ended with {process.returncode}; its log ends: {log.read_text(errors='replace')[-500:]}"
            )
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=5)
        except (OSError, KafkaException):
            time.sleep(0.1)
        else:
            return
    raise Unfetchable(f"the broker did not answer within {START_SECONDS} s")
