import pytest

from floodplain.store.store import Store
from tests.cli.stores import COUNTS, SETTINGS, rows, run_json

pytestmark = pytest.mark.s3


def test_every_command_takes_the_options_of_an_object_store(s3_server):
    location = s3_server.url("cli")
    options = [part for key, value in s3_server.options.items() for part in ("--option", f"{key}={value}")]
    store = Store.open(location, create=True, settings=SETTINGS, options=s3_server.options)
    with store.writer("test") as writer:
        writer.define(COUNTS)
        for _ in range(3):
            epoch = writer.epoch()
            epoch.merge("counts", rows())
            epoch.commit()
    shown = run_json("inspect", location, *options)
    assert shown["epoch"] == 3
    assert shown["tiers"][0]["tier"] == "object"
    assert run_json("compact", location, "--full", *options)["runs_merged"] == 3
    assert run_json("gc", location, *options)["epochs"] == []
    verdict = run_json("verify", location, *options)
    assert verdict["good"] and verdict["runs"] == 4
    told = run_json("verify", s3_server.url("nothing"), *options, code=2)
    assert told["kind"] == "StoreNotFound"
    assert s3_server.secret_key not in str([shown, verdict, told])
