"""What the other processes of the race tests run: ``python -m tests.store.racers ROLE DIRECTORY NAME COUNT``.

They print the epochs that they were told they committed.
"""

import sys

import pyarrow as pa

from floodplain.errors import Conflict
from floodplain.settings import StoreSettings
from floodplain.store.rows.definition import Column, value_table
from floodplain.store.store import Store

SETTINGS = StoreSettings(sync=False, key_groups=16, chunk_bytes=2000, checkpoint_every=8)
TABLE = value_table("t", {"user": pa.string()}, {"n": Column(pa.int64(), default=0, merge="sum"), "who": pa.string()})


def rows(**columns: list[object]) -> pa.Table:
    return pa.table(columns)


def add(path: str, name: str, count: int) -> None:
    """Epochs under one lease: add one to each of some keys, and overwrite and delete another."""
    with Store.open(path, settings=SETTINGS).writer(name, force=True) as writer:
        for number in range(count):
            epoch = writer.epoch()
            epoch.merge("t", rows(user=[f"u{key}" for key in range(20)], n=[1] * 20))
            epoch.delete("t", rows(user=[f"gone{number - 1}"]))
            epoch.put("t", rows(user=[f"gone{number}"], n=[number], who=[name]))
            epoch.commit()
            print(epoch.number, flush=True)


def grab(path: str, name: str, count: int) -> None:
    """Take the lease from whoever has it, and try an epoch; so many times."""
    store = Store.open(path, settings=SETTINGS)
    for _ in range(count):
        writer = store.writer(name, force=True)
        try:
            epoch = writer.epoch()
            epoch.merge("t", rows(user=["sum"], n=[1]))
            epoch.put("t", rows(user=["last"], n=[epoch.number], who=[name]))
            epoch.commit()
            print(epoch.number, flush=True)
        except Conflict:
            continue


if __name__ == "__main__":
    role, path, name, count = sys.argv[1:]
    {"add": add, "grab": grab}[role](path, name, int(count))
