"""The public names, the ones documented, and the errors are the same set."""

import inspect
import re
from pathlib import Path

import pyarrow as pa

import floodplain as fp
from floodplain import errors

DOCS = Path(__file__).parents[1] / "docs" / "api.md"
ENTRY = re.compile(r"^- `(\w+)`: (.+)$")


def documented() -> list[tuple[str, str]]:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("-")]
    return [(match[1], match[2]) for line in lines if (match := ENTRY.match(line))]


def test_every_public_name_is_documented_once_in_one_line():
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("-")]
    names = [name for name, _ in documented()]
    assert len(names) == len(lines)
    assert sorted(names) == sorted(fp.__all__)


def test_every_public_name_is_there_and_no_other():
    for name in fp.__all__:
        assert getattr(fp, name) is not None
    modules = {name for name, member in vars(fp).items() if inspect.ismodule(member)}
    loaded_when_asked_for = set(vars(fp)["_LATER"])
    names = {name for name in vars(fp) if not name.startswith("_")} - modules - {"TYPE_CHECKING"}
    assert names == set(fp.__all__) - loaded_when_asked_for


def test_every_error_is_public():
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert kinds <= set(fp.__all__)
    assert all(issubclass(getattr(fp, name), fp.FloodplainError) for name in kinds)


def test_a_store_is_opened_written_and_read_with_public_names_alone(tmp_path):
    store = fp.open(tmp_path, create=True, settings=fp.StoreSettings(key_groups=4, sync=False))
    with store.writer("test") as writer:
        writer.define(fp.value_table("clicks", {"ad": pa.string()}, {"n": fp.Column(pa.int64(), merge="sum")}))
        epoch = writer.epoch()
        epoch.merge("clicks", pa.table({"ad": ["a", "a", "b"], "n": [1, 2, 3]}))
        epoch.commit()
    found = fp.open(tmp_path).at(epoch=1).table("clicks").multi_get(pa.table({"ad": ["b", "a"]}))
    assert found.aligned()["n"].to_pylist() == [3, 3]
