"""Looking up rows in the state of another pipeline."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.metrics import LOOKUPS
from floodplain.operators.aggregates import functions
from floodplain.operators.joins import state_lookup
from floodplain.store.rows.definition import map_table, value_table
from floodplain.store.store import Store
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from floodplain.tiers import paths
from floodplain.versions.retention import pins

ROWS = "user string, amount long"


@pytest.fixture
def other(tmp_path) -> Iterator[Store]:
    """The state of another pipeline: a level per user, and scores by game."""
    store = Store.open(tmp_path / "other", create=True)
    with store.writer("test") as writer:
        writer.define(value_table("levels", {"name": pa.string()}, {"level": pa.int64()}))
        writer.define(map_table("scores", {"name": pa.string()}, {"game": pa.string()}, {"score": pa.int64()}))
        put(writer, "levels", name=["ada", "bob"], level=[1, 2])
        put(writer, "scores", name=["ada", "ada"], game=["go", "chess"], score=[7, 8])
    yield store
    state_lookup._stores.clear()


def put(writer: Any, table: str, **columns: Any) -> None:
    writer.put(table, pa.table(columns))


def kit(location: Any, table: str = "levels", **options: Any) -> PipelineKit:
    return PipelineKit(lambda stream: stream.lookup(location, table, {"user": "name"}, **options).write("memory"), rows=ROWS)


def rows(*users: str | None) -> list[dict[str, Any]]:
    return [{"user": user, "amount": number} for number, user in enumerate(users)]


def answers(out: dict[str, list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in out["output"]), key=repr)


def test_rows_get_what_the_other_state_has(other, tmp_path):
    found = kit(tmp_path / "other").epoch(rows("ada", "bob", "ada", "cid", None))
    assert answers(found) == [("ada", 0, 1), ("ada", 2, 1), ("bob", 1, 2), ("cid", 3, None), (None, 4, None)]
    assert answers(kit(tmp_path / "other", how="inner").epoch(rows("ada", "cid", None))) == [("ada", 0, 1)]


def test_a_table_with_several_rows_per_key_gives_one_row_for_each(other, tmp_path):
    found = kit(tmp_path / "other", "scores", prefix="their_").epoch(rows("ada", "bob"))["output"]
    assert sorted((row["user"], row["their_game"] or "", row["their_score"]) for row in found) == [
        ("ada", "chess", 8),
        ("ada", "go", 7),
        ("bob", "", None),
    ]


def test_now_is_when_the_epoch_begins_and_each_epoch_tells_what_it_saw(other, tmp_path):
    ours = kit(tmp_path / "other")
    assert answers(ours.epoch(rows("ada"))) == [("ada", 0, 1)]
    seen = other.history.refresh().epoch
    with other.writer("test") as writer:
        put(writer, "levels", name=["ada"], level=[5])
    assert answers(ours.epoch(rows("ada"))) == [("ada", 0, 5)]
    assert {row["value"] for row in ours.state("lookup__seen")} == {seen + 1}
    before = ours.store.at(ours.store.head.epoch - 1).table("lookup__seen").to_arrow().to_pylist()
    assert {row["value"] for row in before} == {seen}


def test_an_epoch_or_a_tag_stays_what_it_was(other, tmp_path):
    epoch = other.history.refresh().epoch
    other.tag("good")
    with other.writer("test") as writer:
        put(writer, "levels", name=["ada"], level=[5])
    for at in (epoch, "good"):
        assert answers(kit(tmp_path / "other", at=at).epoch(rows("ada"))) == [("ada", 0, 1)]


def test_what_is_looked_at_is_pinned_until_the_next_epoch(other, tmp_path):
    ours = kit(tmp_path / "other")
    ours.epoch(rows("ada"))
    ours.epoch(rows("ada"))
    held, _ = pins.live(other.history, 0, other.history.blobs.list(paths.PINS))
    assert [record.mark.epoch for record in held] == [other.history.refresh().epoch]


def test_there_is_one_multi_get_per_task(other, tmp_path):
    ours = PipelineKit(lambda s: s.lookup(tmp_path / "other", "levels", {"user": "name"}).write("memory"), rows=ROWS, slots=1)
    ours.epoch(rows("ada", "bob", "ada", "eve"))
    (store,) = state_lookup._stores.values()
    assert store.open_runs.counters.get(LOOKUPS, "levels") == 1


def test_tasks_are_sent_what_they_look_at(other, tmp_path):
    asked = state_lookup.StateLookup(str(tmp_path / "other"), "levels", {"user": "name"})
    begun = asked.bind(pa.schema([("user", pa.string())]), ("user",), None).for_epoch()
    assert pickle.loads(pickle.dumps(begun)).output == begun.output


def test_a_lookup_survives_every_crash(other, tmp_path):
    script = [KitEpoch(rows("ada", "bob")), KitEpoch(rows("cid", "ada"), slots=3)]
    assert survives_every_crash(lambda: kit(tmp_path / "other"), script) > 10


def test_windows_behind_a_lookup_go_by_the_time_of_its_rows(other, tmp_path):
    def levels(stream):
        looked = stream.watermark("ts", "0 seconds").lookup(tmp_path / "other", "levels", {"user": "name"})
        return looked.key_by("level").window(fp.tumbling("1 second")).agg(n=fp.count()).write("memory")

    ours = PipelineKit(levels, rows="user string, ts timestamp")
    ours.epoch([{"user": user, "ts": datetime.fromtimestamp(5, UTC)} for user in ("ada", "bob", "ada", "eve")])
    found = ours.epoch([], watermark_ms=6000)["output"]
    assert sorted((row["level"] or 0, row["n"]) for row in found) == [(0, 1), (1, 2), (2, 1)]
    assert {row["window_start"] for row in found} == {datetime.fromtimestamp(5, UTC)}


def test_what_cannot_be_looked_up_is_refused(other, tmp_path):
    place = tmp_path / "other"
    with pytest.raises(BadInput, match="keyed by name: say with on= which columns they are; nobody was given"):
        PipelineKit(lambda stream: stream.lookup(place, "levels", {"user": "nobody"}).write("memory"), rows=ROWS)
    with pytest.raises(BadInput, match="a column level already: add something to the names with prefix="):
        PipelineKit(lambda s: s.lookup(place, "levels", {"user": "name"}).write("memory"), rows=ROWS + ", level long")
    with pytest.raises(BadInput, match="how='full' is not known: use left or inner"):
        kit(place, how="full")
    with pytest.raises(BadInput, match="no table 'nothing'"):
        kit(place, "nothing")


def test_changes_that_look_up_one_epoch_are_changes(other, tmp_path):
    """A retraction finds the same entry as the insertion did."""

    def build(stream):
        newest = stream.key_by("amount").last("user", mode="retract")
        levels = newest.lookup(tmp_path / "other", "levels", {"user": "name"}, at=other.head.epoch)
        return levels.key_by("level").agg(n=functions.count()).write("memory")

    ours = PipelineKit(build, rows=ROWS)
    assert answers(ours.epoch([{"user": "ada", "amount": 1}])) == [(1, 1)]
    with other.writer("test") as writer:
        put(writer, "levels", name=["ada"], level=[5])
    assert answers(ours.epoch([{"user": "bob", "amount": 1}])) == [(1, 0), (2, 1)]


def test_rows_may_be_looked_up_in_the_order_of_their_time(other, tmp_path):
    """Each in the epoch in which the watermark has passed it, with what the other state has then."""

    def build(stream):
        return (
            stream.watermark("amount", "0 ms")
            .lookup(tmp_path / "other", "levels", {"user": "name"}, in_order=True)
            .write("memory")
        )

    ours = PipelineKit(build, rows=ROWS, slots=1)
    assert ours.epoch([{"user": "ada", "amount": 30}, {"user": "cid", "amount": 12}], watermark_ms=5)["output"] == []
    with other.writer("test") as writer:
        put(writer, "levels", name=["ada"], level=[9])
    given = [{"user": user, "amount": amount} for user, amount in (("ada", 25), ("ada", 40), ("cid", 11), ("bob", 5))]
    out = ours.epoch(given, watermark_ms=35)["output"]
    assert {user: [row["amount"] for row in out if row["user"] == user] for user in ("ada", "cid")} == {
        "ada": [25, 30],
        "cid": [11, 12],
    }
    assert {row["level"] for row in out if row["user"] == "ada"} == {9}
    assert ours.progress[-1].late_by == {"lookup": 1}, "bob comes at 5, which the watermark had passed"
