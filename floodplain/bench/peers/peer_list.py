"""The peers: versions, configurations, and the share of the input that each gets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from floodplain.bench.peers.peer_environments import Environment


@dataclass(frozen=True, slots=True)
class Peer:
    """Another stream processor."""

    name: str
    environment: Environment
    program: str
    """A module in this folder, run as a script by the environment's Python."""
    form: str
    """The form of its input files, ``parquet``, ``csv`` or ``dealt``: see ``Feed.files``."""
    configuration: str
    options: Mapping[str, str] = field(default_factory=dict)
    share: int = 1
    """It gets one in this many keys and rows: all of them would take it hours."""
    broker: bool = False
    """Whether it needs a Kafka broker; one is started for each run of it."""
    quick: bool = True
    """Whether it is part of the quick form."""

    @property
    def script(self) -> Path:
        return Path(__file__).with_name(f"{self.program}.py")


FLINK = Environment("apache-flink", "2.3.0")

PEERS = (
    Peer(
        "bytewax",
        Environment("bytewax", "0.21.1", ("pyarrow==26.0.1",)),
        "peer_bytewax",
        "parquet",
        "two processes of one worker; a StatefulBatchLogic per key; state in memory, no recovery store, no snapshots",
    ),
    Peer(
        "pathway",
        Environment("pathway", "0.33.0"),
        "peer_pathway",
        "csv",
        "two threads; native CSV reader (none for Parquet) and writer; commits every 1.5 s; state in memory, no persistence",
    ),
    Peer(
        "flink_sql",
        FLINK,
        "peer_flink_sql",
        "dealt",
        "mini cluster with two slots; CSV files in and out; state on the heap; mini-batches; no checkpoints",
        {"backend": "hashmap"},
    ),
    Peer(
        "flink_sql_rocksdb",
        FLINK,
        "peer_flink_sql",
        "dealt",
        "as flink_sql, with state in RocksDB",
        {"backend": "rocksdb"},
        quick=False,
    ),
    Peer(
        "pyflink",
        FLINK,
        "peer_pyflink",
        "dealt",
        "keyed process function in Python inside the JVM (thread mode), two slots; text files; state on the heap; no checkpoints",
        {"backend": "hashmap"},
        share=20,
    ),
    Peer(
        "quix",
        Environment("quixstreams", "3.28.1", ("pyarrow==26.0.1",)),
        "peer_quix",
        "parquet",
        "two processes, a Kafka broker beside them, topics of two partitions in and out; state in RocksDB, no changelog topics",
        share=50,
        broker=True,
    ),
)
