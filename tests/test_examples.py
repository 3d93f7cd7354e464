"""What is shown to readers runs: the examples, and every Python block of the README and the docs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEMO = ROOT / "examples" / "store_demo.py"
FENCE = re.compile(r"^```python(?P<marks>[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = "no-run"


def python_blocks(markdown: str) -> list[str]:
    """The code of each block marked ``python``, but for those marked ``python no-run``."""
    return [match["code"] for match in FENCE.finditer(markdown) if NOT_RUN not in match["marks"].split()]


SHOWN = [page for page in (README, *sorted((ROOT / "docs").rglob("*.md"))) if python_blocks(page.read_text())]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_blocks_are_found_and_marks_respected():
    text = "```python\na\n```\n```bash\nb\n```\n```python no-run\nc\n```\n```python\nd\n```\n"
    assert python_blocks(text) == ["a\n", "d\n"]


def test_the_readme_and_the_concepts_have_python_to_run():
    assert {README, ROOT / "docs" / "concepts.md"} <= set(SHOWN)


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_every_python_block_of_a_page_runs(page, tmp_path):
    """In order, in one process, as a reader would paste them."""
    (tmp_path / "shown.py").write_text("\n".join(python_blocks(page.read_text())))
    shown = run("shown.py", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


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
