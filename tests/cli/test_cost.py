import json

import pytest

from floodplain.cost.savings import MONTH_S
from floodplain.prices import AMAZON
from floodplain.settings import CacheSettings, StoreSettings
from floodplain.store.store import Store
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tier_use import TierUse, tiers_sum
from floodplain.tiers.directory import DirectoryBlobs
from tests.cli.stores import add_epochs, run, run_json
from tests.processes import Count
from tests.runtime.test_tier_use import ROWS, ObjectKit, counting
from tests.tiers.fake_s3 import serving


class DirectoryKit(PipelineKit):
    def __init__(self, folder, *args, **more):
        self.folder = folder
        super().__init__(*args, **more)

    def _blobs(self):
        return DirectoryBlobs(self.folder, sync=False, randomness=self._randomness, counters=self._counters)


def epochs(kit, count):
    for number in range(count):
        kit.epoch([{"user": f"u{number}", "amount": 1}], now_ms=1_000_000 + 2000 * number)


def test_a_directory_costs_nothing_but_its_bytes(tmp_path):
    epochs(DirectoryKit(tmp_path / "state", counting, rows=ROWS), 6)
    shown = run_json("cost", tmp_path / "state")
    assert (shown["epoch"], shown["since_epoch"], shown["epochs"]) == (6, 1, 5)
    assert shown["interval_s"] == pytest.approx(2.0, rel=0.01)
    assert shown["requests_per_epoch"] > 2
    assert shown["cost_per_month"] == shown["cost_per_epoch"] == 0
    assert shown["storage"]["total_bytes"] > shown["storage"]["live_bytes"] > 0
    assert any("directory" in note for note in shown["notes"])
    assert {row["user"] for row in shown["rows"]} >= {"count", "driver.commit", "driver.publish"}
    text = run("cost", tmp_path / "state")
    assert text.exit_code == 0
    assert "driver.commit" in text.stdout and "cost nothing" in text.stdout


def object_store(fake, tmp_path):
    cache = CacheSettings(str(tmp_path / "cache"), 8 << 20)
    kit = ObjectKit(fake, counting, rows=ROWS, settings=StoreSettings(key_groups=16, inline_bytes=0, cache=cache))
    epochs(kit, 6)
    return kit, [part for key, value in fake.options.items() for part in ("--option", f"{key}={value}")]


def test_an_object_store_is_priced_from_what_its_epochs_recorded(tmp_path):
    with serving() as fake:
        kit, options = object_store(fake, tmp_path)
        shown = run_json("cost", "s3://bucket/state", "--every", "1s", *options)
        oldest = kit.store.history.at(1)
    asked = tiers_sum(kit.store.head.used)["object"] - tiers_sum(oldest.used)["object"]
    assert shown["requests_per_epoch"] == pytest.approx(asked.requests / 5)
    assert shown["cost_per_epoch"] == pytest.approx(AMAZON.of(asked) / 5)
    assert shown["requests_per_month"] == pytest.approx(AMAZON.of(asked) / 5 * MONTH_S)
    assert shown["cost_per_month"] == pytest.approx(shown["requests_per_month"] + shown["storage_per_month"])
    assert shown["cost_per_month"] == pytest.approx(
        sum(row["cost_per_month"] for row in shown["rows"]) + shown["storage_per_month"]
    )
    assert any(saving["what"] == "an epoch every 2 s" and 20 < saving["percent"] <= 50 for saving in shown["savings"])


def test_own_prices_and_a_text_for_people(tmp_path):
    own = {
        "name": "ours",
        "date": "today",
        "currency": "EUR",
        "gb_month": 0,
        "put": 1,
        "get": 0,
        "list": 0,
        "head": 0,
        "delete": 0,
    }
    (tmp_path / "own.json").write_text(json.dumps(own))
    with serving() as fake:
        kit, options = object_store(fake, tmp_path)
        arguments = ("cost", "s3://bucket/state", "--prices", tmp_path / "own.json", *options)
        shown, text = run_json(*arguments), run(*arguments)
        oldest = kit.store.history.at(1)
    puts = (tiers_sum(kit.store.head.used)["object"] - tiers_sum(oldest.used)["object"]).puts
    assert shown["cost_per_epoch"] == pytest.approx(puts / 5 / 1000)
    assert shown["prices"]["currency"] == "EUR"
    assert text.exit_code == 0
    assert "EUR a month" in text.stdout and "ours (today)" in text.stdout and "an epoch every" in text.stdout


def test_a_state_whose_epochs_tell_nothing_has_storage_only(tmp_path):
    add_epochs(tmp_path, 3)
    shown = run_json("cost", tmp_path)
    assert shown["epochs"] == 0 and shown["rows"] == []
    assert "no retained epoch has recorded" in shown["notes"][0]
    Store.open(tmp_path / "empty", create=True).close()
    assert "no epoch is committed yet" in run_json("cost", tmp_path / "empty")["notes"][0]


@pytest.mark.parametrize("arguments", [["--every", "0s"], ["--every", "soon"], ["--prices", "/nowhere/prices.toml"]])
def test_what_makes_no_sense_is_refused(tmp_path, arguments):
    add_epochs(tmp_path, 1)
    assert run_json("cost", tmp_path, *arguments, code=2)["kind"] == "BadInput"
    assert run_json("cost", tmp_path / "nothing", code=2)["kind"] == "StoreNotFound"


def test_one_epoch_is_counted_from_the_beginning(tmp_path):
    kit = DirectoryKit(tmp_path / "state", lambda stream: stream.key_by("user").process(Count()).write("memory"), rows=ROWS)
    epochs(kit, 1)
    shown = run_json("cost", tmp_path / "state")
    assert (shown["since_epoch"], shown["epochs"]) == (0, 1)
    assert shown["rows"] and TierUse(**shown["rows"][0]["use"]).requests > 0
