import sys

import pyarrow as pa

from floodplain.store.rows.definition import Column, value_table
from floodplain.store.rows.merge_functions import register_merge
from floodplain.store.store import Store
from floodplain.tiers.files import reserve
from tests.cli.stores import PAGES, SETTINGS, add_epochs, run, run_json


def test_it_shows_what_the_manifest_says(tmp_path):
    add_epochs(tmp_path, 3)
    store = Store.open(tmp_path, settings=SETTINGS)
    writer = store.writer("second")
    writer.define(PAGES)
    store.tag("first", 1)
    epoch = writer.epoch()
    epoch.commit(watermarks={"event_time": 1234})
    shown = run_json("inspect", tmp_path)
    head = store.head
    assert (shown["store"], shown["epoch"], shown["key_groups"]) == (head.store, 4, 8)
    assert shown["log"] == {"position": head.position, "oldest": 1, "checkpoints": [], "horizon": 0}
    assert shown["lease"]["owner"] == "second" and shown["lease"]["held"]
    assert shown["tags"] == {"first": 1}
    assert shown["watermarks"]["event_time"] == 1234
    assert [(epoch["epoch"], epoch["tags"]) for epoch in shown["epochs"]] == [(1, ["first"]), (2, []), (3, []), (4, [])]
    counts, pages = shown["tables"]
    assert (counts["name"], counts["shape"], counts["rows"], len(counts["runs"])) == ("counts", "value", 60, 3)
    assert [(run["first_epoch"], run["last_epoch"], run["rows"]) for run in counts["runs"]] == [
        (3, 3, 20),
        (2, 2, 20),
        (1, 1, 20),
    ]
    assert [(column["name"], column["role"], column["merge"]) for column in counts["columns"]] == [
        ("user", "key", ""),
        ("n", "value", "sum"),
    ]
    assert (pages["shape"], pages["columns"][2]["ttl_ms"]) == ("hashed", 3_600_000)
    (tier,) = shown["tiers"]
    assert tier["tier"] == "directory"
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != reserve.NAME]
    assert tier["size_bytes"] == sum(file.stat().st_size for file in files)
    assert tier["kinds"]["runs"]["objects"] == 3


def test_the_text_has_all_of_it(tmp_path):
    add_epochs(tmp_path, 30)
    Store.open(tmp_path).tag("keep", 2)
    shown = run("inspect", tmp_path)
    assert shown.exit_code == 0
    for part in ("counts", "keep = epoch 2", "free (token 1, released by test)", "processing_time", "value", "directory"):
        assert part in shown.stdout
    assert "10 more: see --json" in shown.stdout


def test_a_module_that_registers_a_merge_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "my_merges.py").write_text(
        "import pyarrow.compute as pc\n"
        "from floodplain.store.rows.merge_functions import register_merge\n\n\n"
        "def larger(older, newer):\n    return pc.max_element_wise(older, newer)\n\n\n"
        "LARGER = register_merge(larger)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_merges

    with Store.open(tmp_path / "store", create=True, settings=SETTINGS).writer("test") as writer:
        writer.define(value_table("t", {"k": pa.int64()}, {"v": Column(pa.int64(), merge=my_merges.LARGER)}))
    monkeypatch.setattr("floodplain.store.rows.merge_functions._registered", {})
    monkeypatch.delitem(sys.modules, "my_merges")
    before = run_json("inspect", tmp_path / "store")
    after = run_json("inspect", tmp_path / "store", "--import", "my_merges")
    assert [shown["tables"][0]["columns"][1]["merge_known"] for shown in (before, after)] == [False, True]
    assert register_merge(my_merges.larger) == "my_merges:larger"


def test_a_module_that_is_not_there_is_a_clear_error(tmp_path):
    add_epochs(tmp_path, 1)
    assert "no_such_module" in run_json("inspect", tmp_path, "--import", "no_such_module", code=2)["error"]


def test_a_damaged_store_is_an_error_that_names_the_file(tmp_path):
    add_epochs(tmp_path, 2)
    (tmp_path / "format").write_bytes(b"")
    assert run_json("inspect", tmp_path, code=1)["kind"] == "Corrupt"
