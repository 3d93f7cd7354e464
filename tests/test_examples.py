"""What is shown to readers runs: the examples, and every Python block of the README and the docs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import floodplain as fp

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEMO = ROOT / "examples" / "store_demo.py"
FENCE = re.compile(r"^```python(?P<marks>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = "no-run"


def python_blocks(markdown: str) -> list[str]:
    """The code of each block marked ``python``, but for those marked ``python no-run``."""
    return [match["code"] for match in FENCE.finditer(markdown) if NOT_RUN not in match["marks"].split()]


SPARK = "SparkSession.builder"
SHOWN = [page for page in (README, *sorted((ROOT / "docs").rglob("*.md"))) if python_blocks(page.read_text())]


def _marked(page: Path) -> Any:
    marks = [pytest.mark.spark] if SPARK in page.read_text() else []
    return pytest.param(page, id=page.stem, marks=marks)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_blocks_are_found_and_marks_respected():
    text = "```python\na\n```\n```bash\nb\n```\n```python no-run\nc\n```\n```python\nd\n```\n"
    assert python_blocks(text) == ["a\n", "d\n"]


def test_the_readme_shows_nothing_that_does_not_run():
    assert NOT_RUN not in README.read_text()


def test_the_readme_and_the_concepts_have_python_to_run():
    assert {README, ROOT / "docs" / "concepts.md"} <= set(SHOWN)


@pytest.mark.parametrize("page", [_marked(page) for page in SHOWN])
def test_every_python_block_of_a_page_runs(page, tmp_path, request):
    """In order, in one process, as a reader would paste them. What asks for Spark needs one that can start."""
    if SPARK in page.read_text():
        request.getfixturevalue("spark")
    (tmp_path / "shown.py").write_text("\n".join(python_blocks(page.read_text())))
    shown = run("shown.py", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_a_session_of_the_readme_lives_as_long_as_its_rows_come():
    """Rows in several epochs set several times at which it would end; only the last of them ends it."""
    code = re.search(r"^class Sessions.*?(?=^\S)", README.read_text()[README.read_text().index("class Sessions") :], re.M | re.S)
    made: dict[str, Any] = {"fp": fp}
    exec(code[0] if code else "", made)
    minute = 60_000
    kit = fp.ProcessKit(made["Sessions"](), rows="user string, page string, ts long", keys=["user"], event_time="ts")
    for at in (1, 21, 41, 35):
        kit.epoch([{"user": "ada", "page": f"/{at}", "ts": at * minute}], watermark_ms=(at - 10) * minute)
    kit.epoch([], watermark_ms=70 * minute)
    assert len(kit.state("kit__pages")) == 4, "it was there at 41, so it lives until 71"
    kit.epoch([], watermark_ms=71 * minute)
    assert kit.state("kit__pages") == [] and kit.state()[0]["views"] == 4


@pytest.fixture
def demo(tmp_path):
    return lambda *options: run(str(DEMO), "--directory", str(tmp_path / "store"), "--epochs", "4", *options, cwd=tmp_path)


def test_the_demo_tells_its_story_and_is_right(demo):
    shown = demo()
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for part in ("fenced", "steps", "epoch 2 reads as it was", "counted on", "file named", "RIGHT: 400,000 rows, 4 epochs"):
        assert part in shown.stdout
    assert "✗" not in shown.stdout


def test_the_demo_fails_if_the_state_is_wrong(demo):
    shown = demo("--sabotage")
    assert shown.returncode == 1
    assert "WRONG: the state of epoch 4 equals what NumPy computed" in shown.stdout


@pytest.mark.spark
def test_the_pipeline_demo_joins_exactly_what_a_batch_does(spark, tmp_path):
    """With a rescale and a killed worker on the way."""
    demo = run(str(ROOT / "examples" / "ad_join.py"), "--seconds", "8", "--folder", str(tmp_path / "demo"), cwd=tmp_path)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "rescaled to 4 slots" in demo.stdout
    assert "killed Python worker" in demo.stdout
    assert "the output equals the batch join" in " ".join(demo.stdout.split())
