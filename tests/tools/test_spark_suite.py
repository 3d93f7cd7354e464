"""The runner of Spark's own tests: where it takes them from, what it reports, and runs of small suites in real processes."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from tools.spark_suite.__main__ import ROOT, Answers, Limits, chosen, environment_of, listed_tests, run_side
from tools.spark_suite.excluded import EXCLUDED
from tools.spark_suite.side import MODULES
from tools.spark_suite.sources import NoTestFiles, provide_tests

NAMES = ["test_a.test_one", "test_a.test_two", "test_b.test_one"]
SUITE = """
import os, sys, time, unittest
sys.path.append({base!r})
import unittest_base
from {package}.pandas.helper import common


class Mixin:
    def test_fails(self):
        self.assertEqual(common.ONE, 2, "one is not two")

    def test_passes(self):
        print("not a line of the report")
        self.assertEqual(common.ONE, 1)

    @unittest.skip("not today")
    def test_skipped(self):
        raise AssertionError

    def test_hangs(self):
        time.sleep(60)

    def test_ends_the_process(self):
        os._exit(3)


class Tests(Mixin, unittest_base.Base):
    pass
"""
BASE = """
import unittest


class Base(unittest.TestCase):
    def test_of_all_classes(self):
        pass
"""


@pytest.fixture
def sources(tmp_path):
    """A tree of the form of Spark's, with a suite of our own."""
    tests = tmp_path / "sources" / "python" / "pyspark" / "sql" / "tests"
    for package in (tests, tests / "pandas", tests / "pandas" / "helper", tests / "pandas" / "streaming"):
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
    (tests / "pandas" / "helper" / "common.py").write_text("ONE = 1\n")
    (tests / "connect").mkdir()
    empty = "import unittest\n\n\nclass Tests(unittest.TestCase):\n    pass\n"
    for module in MODULES:
        (tests / "pandas" / "streaming" / f"{module}.py").write_text(empty)
    (tests / "pandas" / "streaming" / f"{MODULES[0]}.py").write_text(
        SUITE.format(package="pyspark.sql.tests", base=str(tmp_path))
    )
    (tmp_path / "unittest_base.py").write_text(BASE)
    return tmp_path / "sources"


def _repository(sources: Path, *names: str) -> None:
    git = ["git", "-C", str(sources), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"], *(["tag", name] for name in names)):
        subprocess.run([*git, *command], check=True)


def _environment(home: Path, source: Path, ref: str = "") -> dict[str, str]:
    return environment_of(provide_tests(home, str(source), ref, pyspark.__version__))


def test_tests_come_from_a_folder(tmp_path, sources):
    names = listed_tests(_environment(tmp_path / "home", sources))
    wanted = ["ends_the_process", "fails", "hangs", "passes", "skipped"]
    assert sorted(names) == [f"{MODULES[0]}.test_{name}" for name in wanted]


@pytest.mark.parametrize(("tag", "ref"), [(f"v{pyspark.__version__}", ""), ("branch-4.3", ""), ("some", "some")])
def test_tests_come_from_a_repository(tmp_path, sources, tag, ref):
    _repository(sources, tag)
    bare = tmp_path / "bare"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(sources), str(bare)], check=True)
    assert len(listed_tests(_environment(tmp_path / "home", bare, ref))) == 5


def test_without_sources_it_is_said_how_to_give_them(tmp_path):
    with pytest.raises(NoTestFiles, match=f"SPARK_SOURCE.*v{pyspark.__version__}|v{pyspark.__version__}.*SPARK_SOURCE"):
        provide_tests(tmp_path / "home", "", "", pyspark.__version__)


def test_a_source_without_tests_is_refused_by_name(tmp_path, sources):
    shutil.rmtree(sources / "python")
    (sources / "README").touch()
    _repository(sources, "branch-4.3")
    with pytest.raises(NoTestFiles, match=f"{sources} has no folder"):
        provide_tests(tmp_path / "home", str(sources), "", pyspark.__version__)


def test_the_program_ends_with_two_if_it_has_no_tests():
    command = [sys.executable, "-m", "tools.spark_suite"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 2 and "SPARK_SOURCE" in ran.stderr


def test_a_hanging_and_an_ending_test_fail_and_the_others_go_on(tmp_path, sources):
    environment = _environment(tmp_path / "home", sources)
    names = listed_tests(environment)
    answers = run_side("stock", names, environment, Limits(time.monotonic() + 300, 12), tmp_path)
    told = answers.summary(names)
    first = f"{MODULES[0]}.test_"
    assert (told["passed"], told["skipped"], told["not_run"]) == (1, [f"{first}skipped"], [])
    assert sorted(told["failed"]) == [f"{first}{name}" for name in ("ends_the_process", "fails", "hangs")]
    assert "one is not two" in answers.causes[f"{first}fails"]


def test_what_there_was_no_time_for_was_not_run(tmp_path, sources):
    environment = _environment(tmp_path / "home", sources)
    told = run_side("stock", NAMES, environment, Limits(time.monotonic(), 20), tmp_path).summary(NAMES)
    assert told == {"passed": 0, "failed": [], "skipped": [], "not_run": NAMES}


def test_a_failure_stays_one_whatever_follows():
    answers = Answers()
    for outcome in ("failed", "passed"):
        answers.take("a", outcome, outcome)
    assert answers.summary(["a"]) == {"passed": 0, "failed": ["a"], "skipped": [], "not_run": []}


@pytest.mark.parametrize(
    ("only", "wanted"),
    [("", NAMES), ("two", NAMES[1:2]), ("test_a.*", NAMES[:2]), ("two,test_b", NAMES[1:]), ("none", [])],
)
def test_tests_are_chosen_by_words_and_patterns(only, wanted):
    assert chosen(NAMES, only) == wanted


def test_what_is_excluded_has_its_reason_in_the_docs():
    porting = (ROOT / "docs" / "porting.md").read_text()
    assert len(EXCLUDED) <= 4
    assert all(name in porting and reason in porting for name, reason in EXCLUDED.items())


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.skipif("SPARK_SOURCE" not in os.environ, reason="SPARK_SOURCE is not set: no test files of Spark")
def test_a_test_of_spark_on_both_sides():
    command = [sys.executable, "-m", "tools.spark_suite", "--source", os.environ["SPARK_SOURCE"]]
    only = ["--only", "test_transform_with_state.test_transform_with_state_batch_query"]
    ran = subprocess.run([*command, *only], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    told = json.loads(ran.stdout.splitlines()[-1])
    assert (told["passed"], told["failed"], told["stock"]["passed"]) == (1, [], 1), ran.stderr
