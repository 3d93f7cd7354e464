"""Sinks of other packages: found by entry point, loaded when they are asked for, refused with a reason."""

import sys
from pathlib import Path

import pytest

import floodplain as fp
from floodplain.sinks.memory import MemorySink
from floodplain.sinks.registry import open_sink
from tests.sinks.staging import SCHEMA, memory_blobs, rows, stage

MODULE = '''
from pathlib import Path

import floodplain as fp


class TallySink(fp.Sink):
    def __init__(self, path, *, batch_size=10, **others):
        self.path, self.batch_size, self.others = Path(path), batch_size, others

    def publish(self, epoch, staged, blobs, schema):
        with self.path.open("a") as file:
            file.write(f"{epoch} {len(fp.read_staged(staged, blobs, schema))}\\n")


class Unfinished(fp.Sink):
    """Has no ``publish``."""


class NoSink:
    pass
'''


def install(folder: Path, package: str, entries: dict[str, str], module: str = "") -> None:
    """What an installer leaves: the module, and the metadata that names its entry points."""
    (folder / f"{package}.py").write_text(module)
    info = folder / f"{package}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[floodplain.sinks]\n{lines}")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that packages are installed in, for one test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name, module in sys.modules.items() if str(folder) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_a_sink_of_another_package_publishes_what_was_staged(site, tmp_path):
    install(site, "tally_sink", {"tally": "tally_sink:TallySink"}, MODULE)
    sink, blobs = open_sink("tally", {"path": tmp_path / "out.txt"}), memory_blobs()
    for epoch in (1, 2):
        sink.publish(epoch, stage(blobs, epoch, rows(epoch, 0), rows(epoch, 1)), blobs, SCHEMA)
    size = len(rows(1, 0)) + len(rows(1, 1))
    assert (tmp_path / "out.txt").read_text() == f"1 {size}\n2 {size}\n"


def test_a_pipeline_names_a_sink_of_another_package(site, tmp_path):
    install(site, "tally_sink", {"tally": "tally_sink:TallySink"}, MODULE)
    kit = fp.PipelineKit(lambda rows: rows.select("user").write("tally", path=tmp_path / "out"), rows="user string")
    assert kit.epoch([{"user": "ada"}]) == {"output": [{"user": "ada"}]}


def test_options_are_checked_against_the_signature(site):
    install(site, "tally_sink", {"tally": "tally_sink:TallySink"}, MODULE)
    sink = open_sink("tally", {"path": "x", "batchSize": 3, "acks": "all"})
    assert (sink.batch_size, sink.others) == (3, {"acks": "all"})
    with pytest.raises(fp.BadInput, match=r"the sink tally needs path: write\('tally', path=…\)"):
        open_sink("tally", {})


def test_a_sink_is_imported_when_it_is_asked_for(site):
    install(site, "tally_sink", {"tally": "tally_sink:TallySink"}, MODULE)
    with pytest.raises(fp.BadInput, match=r"there is no sink 'csv': use one of parquet, .*, console, tally, or foreach_batch"):
        open_sink("csv", {})
    assert isinstance(open_sink("memory", {}), MemorySink)
    assert "tally_sink" not in sys.modules
    open_sink("tally", {"path": "x"})
    assert "tally_sink" in sys.modules


def test_a_sink_installed_while_the_process_runs_is_found(site):
    with pytest.raises(fp.BadInput, match="there is no sink 'tally'"):
        open_sink("tally", {"path": "x"})
    install(site, "tally_sink", {"tally": "tally_sink:TallySink"}, MODULE)
    assert type(open_sink("tally", {"path": "x"})).__name__ == "TallySink"


@pytest.mark.parametrize(
    ("value", "module", "message"),
    [
        ("tally_sink:TallySink", "import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module named"),
        ("tally_sink:TallySink", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("tally_sink:Other", MODULE, "cannot be imported: AttributeError: .*Other"),
        ("tally_sink:NoSink", MODULE, "is no sink: name a class that inherits from floodplain.Sink"),
        ("tally_sink:Path", MODULE, "is no sink"),
        ("tally_sink:fp", MODULE, "is no sink"),
        ("tally_sink:Unfinished", MODULE, "does not implement publish: add it"),
    ],
)
def test_what_is_wrong_with_a_sink_is_told_with_its_package(site, value, module, message):
    install(site, "tally_sink", {"tally": value}, module)
    with pytest.raises(fp.BadInput, match=rf"the sink tally of package tally_sink 1\.2 \({value}\) {message}"):
        open_sink("tally", {"path": "x"})
    assert isinstance(open_sink("memory", {}), MemorySink), "others can still be used"


def test_two_packages_with_one_name_are_refused_where_it_is_used(site):
    install(site, "tally_sink", {"tally": "tally_sink:TallySink", "memory": "tally_sink:TallySink"}, MODULE)
    install(site, "other_sink", {"tally": "other_sink:TallySink"}, MODULE)
    both = r"package other_sink 1\.2 \(other_sink:TallySink\) and package tally_sink 1\.2 \(tally_sink:TallySink\)"
    with pytest.raises(fp.BadInput, match=rf"several packages have a sink 'tally': {both}: uninstall all but one"):
        open_sink("tally", {"path": "x"})
    with pytest.raises(
        fp.BadInput, match=r"a sink 'memory': floodplain \(floodplain.sinks.memory:MemorySink\) and package tally"
    ):
        open_sink("memory", {})
    assert type(open_sink("console", {})).__name__ == "ConsoleSink"


def test_a_package_that_is_found_twice_counts_once(site, tmp_path, monkeypatch):
    install(site, "tally_sink", {"tally": "tally_sink:TallySink"}, MODULE)
    again = tmp_path / "again"
    again.mkdir()
    install(again, "tally_sink_too", {"tally": "tally_sink:TallySink"})
    monkeypatch.syspath_prepend(again)
    assert type(open_sink("tally", {"path": "x"})).__name__ == "TallySink"
