"""Users' programs type-check: what a checker knows of the public names, and of what process functions are given."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import floodplain as fp

ROOT = Path(__file__).parents[1]
SETTINGS = """
[mypy]
strict = True
[mypy-pyarrow.*]
ignore_missing_imports = True
[mypy-floodplain.*]
follow_imports = silent
"""
"""Of a user who has the package installed: its own modules are not checked again."""
PROGRAM = """
from collections.abc import Iterator, Sequence

import pyarrow as pa

import floodplain as fp


class Clicks(fp.KeyedProcess):
    output = "user string, clicks long"
    side_outputs = {"first": "user string"}
    seen = fp.Value("long", 0)
    pages = fp.Map("string", "long")
    recent = fp.List("string")
    total = fp.Reducing("long", "sum")

    def process(self, key: fp.Row, rows: Sequence[fp.Row], ctx: fp.Context) -> Iterator[tuple[str, int]]:
        reveal_type(self.seen)  # ValueHandle
        reveal_type(self.pages)  # MapHandle
        reveal_type(self.recent)  # ListHandle
        reveal_type(self.total)  # ReducingHandle
        reveal_type(ctx.epoch)  # int
        reveal_type(ctx.watermark)  # int | None
        reveal_type(ctx.timers())  # list[int]
        reveal_type(rows[0])  # Row
        self.seen.set(self.seen.get() + len(rows))
        ctx.timer(ctx.processing_time + 1000)
        ctx.emit("first", {"user": key.user})
        yield key.user, self.seen.get()

    def on_timer(self, key: fp.Row, at: int, ctx: fp.Context) -> None:
        self.seen.clear()


class Counts(fp.KeyedBatchProcess):
    output = "user string, n long"
    n = fp.Reducing("long", "sum", 0)

    def process(self, batch: fp.Batch, ctx: fp.BatchContext) -> pa.Table:
        reveal_type(batch)  # Batch
        reveal_type(ctx.watermark)  # int | None
        batch.add("n", batch.rows_per_key())
        return batch.to_arrow("n")


class Collected(fp.Sink):
    def __init__(self) -> None:
        self.rows = 0

    def publish(self, epoch: int, staged: Sequence[str], blobs: fp.Blobs, schema: pa.Schema) -> None:
        self.rows += len(fp.read_staged(staged, blobs, schema))


def pipeline(rows: fp.Stream) -> object:
    keyed = rows.watermark("at", "10 minutes").key_by("user")
    reveal_type(keyed)  # Stream
    windows = keyed.window(fp.tumbling("1 hour")).agg(n=fp.count())
    reveal_type(windows)  # Stream
    reveal_type(keyed.process(Clicks()))  # Stream
    output = windows.to(Collected())
    reveal_type(output)  # Output
    return output


kit = fp.PipelineKit(lambda rows: rows.key_by("user").process(Counts()).write("memory"), rows="user string, at timestamp")
reveal_type(kit)  # PipelineKit
reveal_type(fp.stream)
reveal_type(fp.Query)
reveal_type(fp.Query.stop)
reveal_type(fp.KitEpoch)
reveal_type(fp.CrashPoint)
reveal_type(fp.Crashed)
reveal_type(fp.survives_every_crash)
reveal_type(fp.transform_with_state)
reveal_type(fp.transform_with_state_in_pandas)
reveal_type(fp.ProcessKit(Clicks(), rows="user string", keys=["user"]))  # ProcessKit
reveal_type(fp.open("state"))  # Store
"""
REVEALED = re.compile(r'program\.py:(\d+): note: Revealed type is "(.*)"')


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("typed")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "mypy.ini").write_text(SETTINGS)
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(folder / "cache"), "program.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


def revealed(checked: str) -> dict[int, str]:
    return {int(line): told for line, told in REVEALED.findall(checked)}


def test_a_users_program_has_no_error(checked):
    assert [line for line in checked.splitlines() if ": error:" in line] == []
    assert len(revealed(checked)) == PROGRAM.count("reveal_type(")


def test_what_is_revealed_is_what_a_reader_expects(checked):
    lines, told = PROGRAM.splitlines(), revealed(checked)
    for number, type_ in told.items():
        _, _, expected = lines[number - 1].partition("  # ")
        if expected:
            last = re.sub(r"[\w.]+\.(\w+)", r"\1", type_).replace("builtins.", "")
            assert last == expected, f"line {number}"


def test_no_public_name_is_any_to_a_type_checker(checked):
    for number, type_ in revealed(checked).items():
        assert not re.fullmatch(r"Any|.*-> Any", type_), PROGRAM.splitlines()[number - 1]


def test_every_lazy_name_is_known_to_a_type_checker():
    lazy = set(vars(fp)["_LATER"])
    text = (ROOT / "floodplain" / "__init__.py").read_text()
    typed = text[text.index("if TYPE_CHECKING:") : text.index("open = Store.open")]
    assert lazy == set(re.findall(r"\w+", " ".join(re.findall(r"import (.*)", typed))))
