"""What is shown to readers runs: the examples, and every Python block of the README and the docs as it stands."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import floodplain as fp

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEMO = ROOT / "examples" / "store_demo.py"
FENCE = re.compile(r"^```(?P<marks>python[^\n]*)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
SPARK = "SparkSession.builder"
S3 = "s3://"


def python_blocks(markdown: str) -> list[str]:
    """The code of each block marked ``python``."""
    return [match["code"] for match in FENCE.finditer(markdown)]


PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
SHOWN = {page: "\n".join(python_blocks(page.read_text())) for page in PAGES if FENCE.search(page.read_text())}


def _marked(page: Path) -> Any:
    needs = [(pytest.mark.spark, SPARK), (pytest.mark.s3, S3)]
    return pytest.param(page, id=page.stem, marks=[mark for mark, sign in needs if sign in SHOWN[page]])


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_blocks_are_found():
    assert python_blocks("```python\na\n```\n```bash\nb\n```\n```python title=x\nd\n```\n") == ["a\n", "d\n"]


def test_no_block_is_kept_from_running():
    """What is no program is marked ``text`` or ``sh``."""
    marks = {page.name: [match["marks"] for match in FENCE.finditer(page.read_text())] for page in SHOWN}
    assert {name: found for name, found in marks.items() if set(found) != {"python"}} == {}


def test_the_guide_has_python_to_run():
    names = ("guide/windows", "guide/joins", "porting", "theory")
    assert {README, *(ROOT / "docs" / f"{name}.md" for name in names)} <= set(SHOWN)


@pytest.fixture
def as_before() -> Iterator[None]:
    """The environment and the logging of this process, after a page has set its own."""
    environment, root = dict(os.environ), logging.getLogger()
    handlers, level, ours = list(root.handlers), root.level, logging.getLogger("floodplain").level
    yield
    os.environ.clear()
    os.environ.update(environment)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("floodplain").setLevel(ours)


@pytest.mark.parametrize("page", [_marked(page) for page in SHOWN])
@pytest.mark.usefixtures("as_before")
def test_every_python_block_of_a_page_runs(page, tmp_path, monkeypatch, request):
    """In order, as a reader would paste them into one program; on the Spark and the S3 server of the tests."""
    if SPARK in SHOWN[page]:
        request.getfixturevalue("spark")
    if S3 in SHOWN[page]:
        for option, value in request.getfixturevalue("s3_server").options.items():
            monkeypatch.setenv(f"AWS_{option.upper()}", value)
    monkeypatch.chdir(tmp_path)
    exec(compile(SHOWN[page], str(page), "exec"), {"__name__": "__main__"})


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
    for part in ("fenced", "steps", "epoch 2 reads as it was", "ads added", "file named", "RIGHT: 400,000 rows, 4 epochs"):
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
