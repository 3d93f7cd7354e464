"""The run of all pipeline tests with one engine: what it runs, what it counts, and that it ends in time."""

import json

import pytest

from floodplain.pipeline.stream import Output
from tests import engines

GOOD = "def test_it(engine):\n    assert engine == 'workers'\n"
BAD = "import pytest\ndef test_no(): assert False\ndef test_off(): pytest.skip('for a reason')\n"


def test_files_with_pipelines_on_spark_are_found():
    names = engines.files()
    assert "tests/spark/test_dataflow.py" in names and "tests/spark/transform_with_state/test_traces.py" in names
    assert not any("test_kills" in name for name in names) and len(names) == len(set(names))


def test_the_seam_changes_what_a_pipeline_starts_with(monkeypatch):
    with monkeypatch.context() as patch:
        engines.start_with("workers", patch)
        assert Output.start.__kwdefaults__["engine"] == "workers"
        monkeypatch.setenv(engines.VARIABLE, "threads")
        with pytest.raises(pytest.UsageError, match="threads is no engine: use tasks or workers"):
            engines.chosen()
    assert Output.start.__kwdefaults__["engine"] in engines.ENGINES


def test_the_last_line_is_json_with_what_came_of_each(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(engines, "ROOT", tmp_path)
    monkeypatch.setattr(engines.java_archive, "make", lambda: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "conftest.py").write_text(
        f"import os, pytest\n@pytest.fixture\ndef engine(): return os.environ['{engines.VARIABLE}']\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    for name, text in {"good": GOOD, "bad": BAD, "broken": "nonsense ="}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    names = [f"test_{name}.py" for name in ("good", "bad", "broken")]
    assert engines.main(["--minutes", "5", *names]) == 1
    shown = capfd.readouterr().out.splitlines()
    assert "[1/3] test_good.py" in "".join(shown)
    told = json.loads(shown[-1])
    assert told["passed"] == 1 and told["skipped"] == ["test_bad.py::test_off"]
    assert "test_bad.py::test_no" in told["failed"] and any(name.startswith("test_broken.py") for name in told["failed"])
    assert engines.main(["--minutes", "0", "test_good.py"]) == 1
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"passed": 0, "failed": [], "skipped": ["test_good.py"]}
