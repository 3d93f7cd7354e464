import gc

import pyarrow as pa

from floodplain.operators.kernel.task import KeyedTask
from floodplain.testing.pipeline_kit import PipelineKit
from tests.workers.pipelines import ROWS, batches, build


def test_a_task_and_its_rows_are_freed_when_it_ends():
    """What is part of a cycle stays until the collector runs, and that is off while tasks run."""
    kit = PipelineKit(build, rows=ROWS)
    first, second = batches(2)
    kit.epoch(first)
    gc.collect()
    gc.disable()
    try:
        kit.epoch(second)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [thing for thing in gc.garbage if isinstance(thing, KeyedTask | pa.RecordBatch | pa.Table)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
