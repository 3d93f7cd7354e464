"""A real Kafka broker on this machine (KRaft, its own controller), with jars from Maven's central repository."""

import base64
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from floodplain.bench.harness.maven import Jars, Module, Unfetchable
from floodplain.clock import SystemClock, SystemRandomness

BROKER: Module = ("org.apache.kafka", "kafka_2.13", "4.3.1")
START_SECONDS = 60


@contextmanager
def broker(
    ports: list[int], jars: Jars, *, rebalance_delay_ms: int = 0, ready: Callable[[str], bool] = lambda _: True
) -> Iterator[str]:
    """Yields its address once it accepts connections and ``ready(address)`` is true. Raises ``Unfetchable`` if it cannot start.

    ``rebalance_delay_ms``: how long an empty consumer group waits for further members before partitions are assigned.
    """
    class_path = os.pathsep.join(map(str, jars.fetched("kafka-" + BROKER[2], [BROKER], transitive=True)))
    home = Path(tempfile.mkdtemp(prefix="fpkafka"))
    settings = home / "server.properties"
    settings.write_text(_settings(home, ports, rebalance_delay_ms))
    randomness = SystemRandomness()
    cluster = base64.urlsafe_b64encode(bytes.fromhex(randomness.nonce() + randomness.nonce())).decode().rstrip("=")
    start = [jars.java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    process = None
    try:
        with (home / "log").open("wb") as log:
            storage = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            subprocess.run([*start, *storage], check=True, stdout=log, stderr=log, timeout=START_SECONDS)
            process = subprocess.Popen([*start, "kafka.Kafka", str(settings)], cwd=home, stdout=log, stderr=log)
        address = f"127.0.0.1:{ports[0]}"
        _wait(process, ports[0], home / "log", lambda: ready(address))
        yield address
    finally:
        if process is not None:
            process.kill()  # its data is not needed any more, and an orderly shutdown takes seconds
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _settings(home: Path, ports: list[int], rebalance_delay_ms: int) -> str:
    port, controller = ports
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
        "group.initial.rebalance.delay.ms": str(rebalance_delay_ms),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _wait(process: subprocess.Popen[bytes], port: int, log: Path, ready: Callable[[], bool]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic_s() + START_SECONDS
    while clock.monotonic_s() < deadline:
        if process.poll() is not None:
            raise Unfetchable(
                f"the broker ended with {process.returncode}; its log ends: {log.read_text(errors='replace')[-500:]}"
            )
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            if ready():
                return
        except OSError:
            pass
        clock.sleep_s(0.1)
    raise Unfetchable(f"the broker did not answer within {START_SECONDS} s")
