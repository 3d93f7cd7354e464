"""An unsuitable Spark, Java or Python of the tasks is detected, and the error says what to do."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from floodplain.errors import BadInput
from floodplain.spark import java
from floodplain.spark.environment import SUPPORTED, check_classic, check_driver, check_workers
from floodplain.spark.environment_probe import MODULES, probe
from floodplain.spark.runtime import stream

MINE = {"python": "/env/bin/python", "host": "here", "pyspark": "4.3.0", "pyarrow": "25.0.0", "floodplain": "0.1.0"}
UNFIT = "in /env/bin/python does not fit Floodplain: install"


def test_what_is_supported_is_what_the_package_asks_for():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    for name, (oldest, end) in SUPPORTED.items():
        wanted = f"{name}>={'.'.join(map(str, oldest))}" + ("" if end is None else f",<{'.'.join(map(str, end))}")
        assert wanted in asked


def test_a_python_tells_what_it_has_and_what_it_lacks(monkeypatch):
    (mine,) = probe(())
    assert mine["python"] == sys.executable and {*MODULES} <= {*mine}
    monkeypatch.setitem(MODULES, "nonesuch", "nonesuch.at_all")
    (mine,) = probe(())
    assert mine["no nonesuch"] == "ModuleNotFoundError: No module named 'nonesuch'"


@pytest.mark.parametrize(
    ("changed", "spark", "runs_on", "message"),
    [
        ({}, "4.3.0", "17", None),
        ({}, "4.3.1-vendor-2", "25", None),
        ({"pyspark": "4.3.1.dev0"}, "4.3.0", "21", None),
        ({"pyspark": "4.2.9"}, "4.2.9", "17", f"pyspark 4.2.9 {UNFIT} 'pyspark>=4.3,<5'"),
        ({"pyspark": "5.0.0"}, "5.0.0", "17", f"pyspark 5.0.0 {UNFIT} 'pyspark>=4.3,<5'"),
        ({"pyarrow": "20.0.0"}, "4.3.0", "17", f"pyarrow 20.0.0 {UNFIT} 'pyarrow>=21'"),
        ({}, "4.4.0", "17", "Spark is 4.4.0 and pyspark in /env/bin/python is 4.3.0: install there pyspark 4.4"),
        ({}, "4.3.0", "11", "Spark runs on Java 11 and needs 17 or newer: set JAVA_HOME before the session is made"),
        ({}, "4.3.0", "1.8", "Spark runs on Java 1.8 and needs 17 or newer"),
    ],
)  # fmt: skip
def test_the_driver(changed, spark, runs_on, message):
    if message is None:
        check_driver(MINE | changed, spark, runs_on)
        return
    with pytest.raises(BadInput, match=re.escape(message)):
        check_driver(MINE | changed, spark, runs_on)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("local", [True, False], ids=["local", "cluster"])
def test_tasks(name, local):
    check_workers(MINE, [MINE, MINE | {name: ""}], local=local)
    lacking = {key: value for key, value in MINE.items() if key != name} | {f"no {name}": "ModuleNotFoundError: No module"}
    where = "the Python of Spark's tasks, /env/bin/python" + ("" if local else " on here")
    advice = (
        "set PYSPARK_PYTHON to " + sys.executable if local else r"--archives env.tar.gz#env and PYSPARK_PYTHON=./env/bin/python"
    )
    with pytest.raises(BadInput, match=re.escape(f"{where}, cannot import {name} (ModuleNotFoundError")) as told_:
        check_workers(MINE, [MINE, lacking], local=local)
    assert advice in str(told_.value)
    message = f"{where}, has {name} 1.2.3 instead of {MINE[name]}, as the driver's Python /env/bin/python has"
    with pytest.raises(BadInput, match=re.escape(message)) as told_:
        check_workers(MINE, [MINE, MINE | {name: "1.2.3"}], local=local)
    assert advice in str(told_.value)


def test_a_java_that_is_too_old_is_named(tmp_path, monkeypatch):
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=re.escape(f"needs Java 17 or newer ({old} is 11): set JAVA_HOME")):
        java.provide_java(tmp_path)
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(BadInput, match=r"none was found"):
        java.provide_java(tmp_path)


@pytest.mark.parametrize("call", [stream, lambda rows: stream(clicks=rows), lambda rows: check_classic([rows])])
def test_a_frame_of_spark_connect_is_refused_by_name(call):
    """Known by where its class is from: Spark Connect itself needs packages that the tests do without."""
    there = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    with pytest.raises(BadInput, match="Spark Connect, whose sessions have no SparkContext"):
        call(there())
