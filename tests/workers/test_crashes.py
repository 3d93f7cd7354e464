"""Every point at which a driver with workers can die: the next goes on with workers of its own. Nothing is lost or doubled."""

import pytest

from floodplain.settings import StoreSettings
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit, survives_every_crash
from tests.testing.test_crashes import SCRIPTS
from tests.testing.test_pipeline_kit import ROWS, counting, rows
from tests.workers.pipelines import ROWS as NUMBERED
from tests.workers.pipelines import batches, build
from tests.workers.worker_kit import WorkersKit

SETTINGS = StoreSettings(key_groups=16, inline_bytes=0, checkpoint_every=4)
BRIEF = (counting, ROWS, [KitEpoch(rows("a", "b", "a"))])
CHAIN = (build, NUMBERED, [KitEpoch(each) for each in batches(2)])


def outcome_of(kit, script):
    kit.play(script)
    return kit.outcome()


def survived(folder, script, slots=2, **more):
    """The number of crashes. What comes without one is what comes in one process."""
    build, columns, epochs = script
    given = {"rows": columns, "slots": slots, "settings": SETTINGS}
    kits = []

    def make():
        kits.append(WorkersKit(folder / f"state{len(kits)}", build, **given, **more))
        return kits[-1]

    try:
        assert outcome_of(make(), epochs) == outcome_of(PipelineKit(build, **given), epochs)
        return survives_every_crash(make, epochs)
    finally:
        for kit in kits:
            kit.close()


def test_no_crash_of_a_driver_with_workers_loses_or_repeats_anything(tmp_path):
    assert survived(tmp_path, BRIEF) == 7


@pytest.mark.soak
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_crash_in_a_longer_script_loses_or_repeats_anything(tmp_path, name):
    assert survived(tmp_path, SCRIPTS[name]) > 10


@pytest.mark.soak
@pytest.mark.parametrize("reads", [False, True], ids=["bridge", "reads"])
def test_no_crash_loses_or_repeats_rows_that_workers_exchange(tmp_path, reads):
    assert survived(tmp_path, CHAIN, reads=reads, slots=4) > 10
