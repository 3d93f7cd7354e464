"""The peer Flink SQL. Runs in its own environment, without Floodplain; ``bench.peers`` has its input and output.

One query from CSV files to CSV files inside the JVM; Python only submits it. Two slots of a mini cluster, objects reused, the
count in mini-batches with local aggregation, no checkpoints. Each row of the answer has its output time.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "pipeline.object-reuse": "true",
    "taskmanager.memory.managed.size": "1g",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.local-time-zone": "UTC",
}
COUNT = (
    "create table fed (`key` string, amount bigint) with ({fed})",
    "create table answer (`key` string, n bigint, total bigint, came_ms bigint) with ({answer})",
    "create view counted as select `key`, count(*) as n, sum(amount) as total from fed group by `key`",
    """insert into answer select `key`, n, total, {now} from
    to_changelog(input => table counted, op_mapping => map['INSERT', 'put', 'UPDATE_AFTER', 'put'])""",
)
JOIN = (
    """create table fed (kind string, ad bigint, at_ms bigint, happened as to_timestamp_ltz(at_ms, 3),
    watermark for happened as happened - interval '{disorder_s}' second) with ({fed})""",
    "create table answer (ad bigint, impression bigint, click bigint, came_ms bigint) with ({answer})",
    "create view impressions as select ad, at_ms, happened from fed where kind = 'impression'",
    "create view clicks as select ad, at_ms, happened from fed where kind = 'click'",
    """insert into answer select i.ad, i.at_ms, c.at_ms, {now} from impressions i join clicks c on i.ad = c.ad
    and c.happened between i.happened and i.happened + interval '{within_s}' second""",
)
NOW = (
    "timestampdiff(second, to_timestamp_ltz(0, 3), current_row_timestamp()) * cast(1000 as bigint) "
    "+ extract(millisecond from current_row_timestamp())"
)


def main():
    task = json.loads(sys.argv[1])
    began = time.perf_counter()
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        **SETTINGS,
        "parallelism.default": str(task["workers"]),
        "taskmanager.numberOfTaskSlots": str(task["workers"]),
        "state.backend.type": task["backend"],
    }
    for name, value in settings.items():
        environment.get_config().set(name, value)
    parts = {
        "fed": f"'connector' = 'filesystem', 'path' = '{task['input']}', 'format' = 'csv'",
        "answer": f"'connector' = 'filesystem', 'path' = '{Path(task['output']) / 'answer'}', 'format' = 'csv'",
        "now": NOW,
        "within_s": task["within_ms"] // 1000,
        "disorder_s": task["disorder_ms"] // 1000,
    }
    for statement in COUNT if task["workload"] == "count" else JOIN:
        result = environment.execute_sql(statement.format(**parts))
    result.wait()
    report = {"whole_seconds": time.perf_counter() - began, "version": version("apache-flink"), "answer": "csv_bare"}
    print(json.dumps({**report, "settings": settings}))


if __name__ == "__main__":
    main()
