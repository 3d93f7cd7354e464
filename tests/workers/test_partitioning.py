import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.runtime.staging import Split
from floodplain.versions.records.assignment import even, groups_of, slot_of_each_group
from floodplain.workers.partitioning import Partitioner

KEY_GROUPS = 64
USERS = st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=60)


def _table(users):
    return pa.table({"user": pa.array(users, pa.string()), "number": pa.array(range(len(users)), pa.int64())})


@settings(deadline=None)
@given(USERS, st.integers(1, 7))
def test_rows_go_to_the_slots_that_staging_and_spark_give_them_in_their_order(users, slots):
    groups = groups_of(even(slots, KEY_GROUPS, 1), KEY_GROUPS)
    rows = _table(users)
    of_row = Split(("user",), slot_of_each_group(groups, KEY_GROUPS), slots).of(rows)
    made = list(Partitioner(["user"], groups, KEY_GROUPS).split(rows))
    assert [slot for slot, _ in made] == sorted(set(of_row.tolist()))
    for slot, part in made:
        assert part.column("number").to_pylist() == [number for number, each in enumerate(of_row) if each == slot]


@pytest.mark.parametrize("chunks", [1, 3])
def test_rows_in_several_chunks_are_split_as_one(chunks):
    groups = groups_of(even(3, KEY_GROUPS, 1), KEY_GROUPS)
    users = [f"u{number % 9}" for number in range(30)]
    whole = _table(users)
    size = len(users) // chunks
    rows = pa.concat_tables([whole.slice(start, size) for start in range(0, len(users), size)])
    split = Partitioner(["user"], groups, KEY_GROUPS).split
    assert [(slot, part.to_pylist()) for slot, part in split(rows)] == [(slot, part.to_pylist()) for slot, part in split(whole)]
