"""Values in the names of folders: those that every reader takes alike, and none else."""

from datetime import date

import pyarrow as pa
import pytest

from floodplain.sources.evaluation import scalar_of
from floodplain.sources.partition_columns import PartitionColumn, can_be_read, partition_values
from floodplain.sources.scan import encoded_type

VALUES = [
    (pa.int64(), "7", 7),
    (pa.int64(), "-9223372036854775808", -(1 << 63)),
    (pa.int64(), "9223372036854775808", ...),
    (pa.int32(), "2147483648", ...),
    (pa.int16(), "-32769", ...),
    (pa.int8(), "127", 127),
    (pa.int64(), "0", 0),
    *((pa.int64(), text, ...) for text in ("", "-0", "07", "+7", "7.0", " 7", "1e3", "٧", "7L")),
    *((type_, "__HIVE_DEFAULT_PARTITION__", None) for type_ in (pa.int64(), pa.string(), pa.date32())),
    (pa.string(), "a b", "a b"),
    (pa.string(), "a%2Fb%3D%25", "a/b=%"),
    (pa.string(), "100%", "100%"),
    (pa.string(), "ä=ö", "ä=ö"),
    (pa.string(), "007", "007"),
    (pa.string(), "", ...),
    (pa.date32(), "2024-02-29", date(2024, 2, 29)),
    *((pa.date32(), text, ...) for text in ("2023-02-29", "2024-2-9", "20240209", "2024-W06-5", "2024-02-29 00:00:00")),
]


def columns_of(**types):
    return [PartitionColumn(name, encoded_type(type_)) for name, type_ in types.items()]


@pytest.mark.parametrize(("type_", "text", "value"), VALUES)
def test_a_value_is_known_if_it_is_written_in_one_way(type_, text, value):
    made = partition_values([f"part={text}"], columns_of(part=type_))
    if value is ...:
        assert made is None
    else:
        (const,) = made
        assert scalar_of(const).as_py() == value and scalar_of(const).type == type_


@pytest.mark.parametrize("folders", [[], ["a=1"], ["b=1", "a=1"], ["a=1", "b=1", "c=1"], ["x", "a=1", "b=1"], ["A=1", "b=1"]])
def test_other_folders_are_not_read(folders):
    columns = columns_of(a=pa.int64(), b=pa.int64())
    assert partition_values(folders, columns) is None
    assert partition_values(["a=1", "b=2"], columns) is not None


def test_types_that_are_written_in_many_ways_are_not_read():
    others = pa.float64(), pa.decimal128(9, 2), pa.timestamp("us"), pa.bool_(), pa.binary(), pa.uint8()
    assert not any(map(can_be_read, others))
    assert all(map(can_be_read, (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32())))
