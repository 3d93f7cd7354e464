"""``peers``: which they are, what they are fed, what counts as an answer, and that one who fails does not stop the others.

No environment is built here. Where one stands in the cache already its program runs, at a size where times mean nothing.
"""

import json
import os
import select
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodplain.bench import peer_comparison, registry
from floodplain.bench.harness.frame import Bench
from floodplain.bench.peers.peer_environments import READY, Environment, Unavailable, cache_folder, run
from floodplain.bench.peers.peer_events import CAME, COLUMNS, COUNT, JOIN, WORKERS, WORKLOADS, Answer, Feed, Scale
from floodplain.bench.peers.peer_list import PEERS, Peer
from floodplain.bench.workloads import adverts
from floodplain.clock import ManualClock
from floodplain.errors import BadInput

TINY = Scale(keys=60, rows=40, ads=10, rows_per_s=8, warm=1, timed=2)
NOWHERE = Environment("nowhere", "1.0", ("no requirement at all",))
"""Pip refuses it before it asks for anything."""


@pytest.fixture(params=WORKLOADS)
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Feed:
    return Feed(request.param, TINY, tmp_path / "feed")


def wanted(feed: Feed, files: list[Path]) -> pa.Table:
    """By a naive loop."""
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    made = []
    if feed.workload == COUNT:
        for key in {row["key"] for row in rows}:
            amounts = [row["amount"] for row in rows if row["key"] == key]
            made += [(key, n, sum(amounts[:n])) for n in range(1, len(amounts) + 1)]
    else:
        shown = [(row["ad"], row["at_ms"]) for row in rows if row["kind"] == "impression"]
        clicks = [(row["ad"], row["at_ms"]) for row in rows if row["kind"] == "click"]
        made = [(ad, at, click) for ad, at in shown for other, click in clicks if ad == other and at <= click <= at + 20_000]
    return pa.table([list(column) for column in zip(*made, strict=True)], names=list(COLUMNS[feed.workload]))


def answer(feed: Feed, folder: Path, rows: pa.Table, form: str = "parquet") -> Answer:
    folder.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        pq.write_table(rows, folder / "0.parquet")
    else:
        (folder / "answer").mkdir(exist_ok=True)
        lines = [",".join(map(str, row.values())) for row in rows.to_pylist()]
        (folder / "answer" / "part-0").write_text("\n".join(lines))
    return Answer(feed, form, folder)


def test_an_answer_is_right_or_wrong(feed: Feed, tmp_path: Path) -> None:
    rows = wanted(feed, [*feed.warm, *feed.timed])
    assert len(rows) > 50
    assert answer(feed, tmp_path / "right", rows).right()
    last = len(rows) - 1
    number = rows.column_names[-1]
    changed = rows.column(number).to_pylist()
    changed[last] += 1
    wrong = {
        "a row is missing": rows.slice(0, last),
        "a number is wrong": rows.set_column(2, number, pa.array(changed)),
        "one too many": pa.concat_tables([rows, rows.slice(last).set_column(1, rows.column_names[1], pa.array([10**15]))]),
    }
    for why, other in wrong.items():
        assert not answer(feed, tmp_path / "wrong", other).right(), why


def test_rows_that_say_when_they_came_tell_the_seconds(feed: Feed, tmp_path: Path) -> None:
    before = wanted(feed, feed.warm)
    after = duckdb.sql(
        "(from all_rows) except all (from before)",
        connection=_with(all_rows=wanted(feed, [*feed.warm, *feed.timed]), before=before),
    )
    later = after.to_arrow_table()
    came = [1000 + 10 * n // len(before) for n in range(len(before))] + [2500] * (len(later) - 1) + [4009]
    rows = pa.concat_tables([before, later]).append_column(CAME, pa.array(came))
    told = answer(feed, tmp_path / "out", rows, "csv_bare")
    assert told.right()
    assert told.seconds() == pytest.approx(3.0)


def _with(**tables: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def test_every_form_has_the_same_rows(feed: Feed) -> None:
    parquet = duckdb.read_parquet([path for part in feed.files("parquet") for path in part])
    csv = [path for part in feed.files("csv") for path in part]
    warm, dealt = feed.files("dealt")
    assert (warm, len(dealt)) == ([], WORKERS)
    assert [len(part) for part in feed.files("csv")] == [len(feed.warm), len(feed.timed)]
    rows = sorted(parquet.project('* exclude ("at")' if feed.workload == JOIN else "*").fetchall())
    assert sorted(duckdb.read_csv(csv, header=True).fetchall()) == rows
    assert sorted(duckdb.read_csv(dealt, header=False).fetchall()) == rows
    assert feed.files("csv") == feed.files("csv"), "made once"


def test_events_come_in_the_order_of_arrival_and_never_later_than_they_may(tmp_path: Path) -> None:
    feed = Feed(JOIN, replace(TINY, rows=4000, rows_per_s=500), tmp_path)
    newest = 0
    for path in [*feed.warm, *feed.timed]:
        for at in pq.read_table(path).column("at_ms").to_pylist():
            assert at > newest - adverts.DISORDER_MS
            newest = max(newest, at)
    assert newest - adverts.START_MS == pytest.approx(feed.scale.span_ms, abs=2 * adverts.DISORDER_MS)


def test_the_warm_up_gives_every_key_a_state(tmp_path: Path) -> None:
    feed = Feed(COUNT, TINY, tmp_path)
    keys = {key for path in feed.warm for key in pq.read_table(path).column("key").to_pylist()}
    assert len(keys) == TINY.keys
    assert feed.timed_rows == TINY.timed * TINY.rows
    assert feed.progress(feed.warm) == TINY.keys + TINY.warm * TINY.rows


def test_the_peers_are_pinned_and_their_programs_are_there() -> None:
    assert {"bytewax", "pathway", "flink_sql", "pyflink"} <= {peer.name for peer in PEERS}
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert peer.script.exists() and peer.configuration
        assert all("==" in requirement for requirement in peer.environment.requirements)
    assert "peers" in registry.NAMES


def test_a_command_is_given_up_in_time_with_all_that_it_started(tmp_path: Path) -> None:
    start = "import subprocess, sys; child = subprocess.Popen(['sleep', '600'])"
    script = start + "\nopen(sys.argv[1], 'w').write(str(child.pid)); child.wait()"
    with pytest.raises(Unavailable, match="did not end within 5 s"):
        run([sys.executable, "-c", script, str(tmp_path / "pid")], 5)
    try:
        child = os.pidfd_open(int((tmp_path / "pid").read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([child], [], [], 60)[0], "it goes on"
    finally:
        os.close(child)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("import sys; sys.exit(3)", "ended with code 3"),
        ("print('hello')", "without a report"),
        ("pass", "without a report"),
    ],
)
def test_a_program_that_fails_is_unavailable_with_the_reason(script: str, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        peer_comparison.run_program([sys.executable, "-c", script], {}, 60)


def test_a_program_is_told_all_that_it_needs(feed: Feed, tmp_path: Path) -> None:
    task = peer_comparison.program_task(feed, tmp_path, PEERS[-1])
    assert json.loads(json.dumps(task)) == task
    assert len(set(task["ports"])) == task["workers"] == WORKERS
    assert 0 < task["warm_progress"] < task["all_progress"]
    assert task["all_progress"] == len(wanted(feed, [*feed.warm, *feed.timed]))
    assert PEERS[-1].options.items() <= task.items()


def test_peers_that_fail_are_listed_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package that is nowhere, and with real Pythons: one that lacks the peer's package, one that has an answer."""
    monkeypatch.setenv("FLOODPLAIN_PEERS", str(tmp_path / "cache"))
    bare, good = Environment("bare", "1"), Environment("good", "1")
    for environment in (bare, good):
        python = tmp_path / "cache" / environment.name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        (python.parents[1] / READY).touch()
    lone = [
        Peer("nowhere", NOWHERE, "peer_bytewax", "parquet", "cannot be installed"),
        Peer("bare", bare, "peer_bytewax", "parquet", "cannot be run"),
        Peer("good", good, "oracle", "parquet", "DuckDB itself"),
        Peer("wrong", good, "oracle", "parquet", "leaves rows out", {"limit": "limit 5"}),
    ]
    monkeypatch.setattr(Peer, "script", property(lambda peer: _script(tmp_path, peer)))
    bench = Bench("peers", ManualClock())
    racing = peer_comparison._Peers(bench, peer_comparison.Sizes(TINY, rounds=2, run_seconds=60), tmp_path / "home", lone)
    # Ours is on Spark: here its place is taken by the same program.
    monkeypatch.setattr(racing, "_command", lambda peer: [sys.executable, str(_script(tmp_path, peer or lone[2]))])
    racing.run()
    assert (tmp_path / "cache" / NOWHERE.name / "bin" / "python").exists()
    assert not (tmp_path / "cache" / NOWHERE.name / READY).exists(), "half of it is there, and not taken for one"
    told = bench.figures["peers"]
    assert "no requirement at all" in told["nowhere"]["unavailable"]["install"]
    assert {what: "bytewax" in reason for what, reason in told["bare"]["unavailable"].items()} == {"count": True, "join": True}
    assert "unavailable" not in told["good"] and told["good"]["version"] == "1"
    assert set(bench.ratios) == {"counter_vs_good", "join_vs_good"}
    assert bench.checks == {
        f"{workload}_{name}_equals_duckdb": name != "wrong" for workload in WORKLOADS for name in ("floodplain", "good", "wrong")
    }
    assert set(bench.figures["join"]) == {"floodplain", "good"} and bench.figures["join"]["good"]["rounds"] == 2
    assert msgspec.json.decode(msgspec.json.encode(bench.result())) == bench.result()


def test_without_our_side_there_is_nothing_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    racing = peer_comparison._Peers(Bench("peers", ManualClock()), peer_comparison.Sizes(TINY, rounds=1), tmp_path, [])
    monkeypatch.setattr(racing, "_command", lambda _: [sys.executable, "-c", "raise OSError('no Java')"])
    with pytest.raises(BadInput, match=r"Floodplain could not run.*no Java"):
        racing.run()


ORACLE = """
import duckdb, json, sys
asked = json.loads(sys.argv[1])
fed = f"read_parquet({asked['warm'] + asked['timed']})"
count = f"select key, count(*) as n, sum(amount)::bigint as total from {fed} group by key"
join = f"select i.ad, i.at_ms as impression, c.at_ms as click from {fed} i join {fed} c on i.ad = c.ad and "
join += f"i.kind = 'impression' and c.kind = 'click' and c.at_ms between i.at_ms and i.at_ms + {asked['within_ms']}"
answer = count if asked["workload"] == "count" else join
duckdb.sql(f"{answer} {asked.get('limit', '')}").write_parquet(asked["output"] + "/0.parquet")
print(json.dumps({"seconds": 0.5, "whole_seconds": 1.0, "answer": "parquet"}))
"""


def _script(folder: Path, peer: Peer) -> Path:
    if peer.program != "oracle":
        return Path(peer_comparison.__file__).with_name("peers") / (f"{peer.program}.py")
    (folder / "oracle.py").write_text(ORACLE)
    return folder / "oracle.py"


def test_some_can_be_chosen_by_name() -> None:
    chosen = replace(peer_comparison.QUICK, only=("pathway", "flink_sql_rocksdb"))
    assert [peer.name for peer in PEERS if peer_comparison.QUICK.includes(peer)] == [peer.name for peer in PEERS if peer.quick]
    assert [peer.name for peer in PEERS if chosen.includes(peer)] == ["pathway", "flink_sql_rocksdb"]
    with pytest.raises(BadInput, match=r"the benchmark peers has no pathways: --only takes .*pathway"):
        registry.run("peers", quick=True, only=["pathways"])


@pytest.mark.soak
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_program_of_a_peer_answers_right_where_its_environment_stands(peer: Peer, feed: Feed, tmp_path: Path) -> None:
    folder = cache_folder() / peer.environment.name
    if not (folder / READY).exists():
        reason = f"the environment of {peer.name} is not in {folder.parent}: floodplain bench peers builds it"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    output = tmp_path / "output"
    output.mkdir()
    with peer_comparison.broker_options(peer) as task:
        task |= peer_comparison.program_task(feed, output, peer)
        told = peer_comparison.run_program([str(folder / "bin" / "python"), "-P", str(peer.script)], task, 300)
    found = Answer(feed, told["answer"], output)
    assert found.right()
    assert (told.get("seconds") or found.seconds()) < told["whole_seconds"]


@pytest.mark.soak
@pytest.mark.spark
def test_our_program_answers_right_on_spark(feed: Feed, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    told = peer_comparison.run_program(
        [sys.executable, "-m", "floodplain.bench.peer_floodplain"],
        peer_comparison.program_task(feed, output, None),
        300,
        own=True,
    )
    assert Answer(feed, told["answer"], Path(told["folder"])).right()
    assert 0 < told["seconds"] < told["whole_seconds"]
