"""One side of the suite, in a process of its own: runs the tests that it is given and reports each as a line of JSON.

``python -m tools.spark_suite.side stock|drop-in list`` lists all tests; else the names of the tests to run come on stdin.
"""

import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tools.spark_suite.sources import PACKAGE

MODULES = (
    "test_pandas_transform_with_state",
    "test_pandas_transform_with_state_state_variable",
    "test_transform_with_state",
    "test_transform_with_state_state_variable",
)


def found_tests() -> dict[str, unittest.TestCase]:
    """The tests of the four modules, by ``<module>.<method>``.

    What a module imports, or inherits from Spark's base class of all tests, is not its own.
    """
    tests = {}
    for name in MODULES:
        module = import_module(f"{PACKAGE}.pandas.streaming.{name}")
        for test in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if type(test).__module__ == module.__name__ and _defined_in(test).startswith(PACKAGE):
                tests[f"{name}.{test._testMethodName}"] = test
    return tests


def _defined_in(test: unittest.TestCase) -> str:
    return next(kind.__module__ for kind in type(test).__mro__ if test._testMethodName in vars(kind))


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for part in suite:
            yield from _flat(part)


class Reporter(unittest.TestResult):
    """Writes a line when a test starts and one when it ends. Tracebacks go to stderr."""

    def __init__(self, lines: Any, names: dict[int, str]) -> None:
        super().__init__()
        self._lines = lines
        self._names = names
        self._began_s = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._began_s = time.monotonic()
        self._say(test, "started")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._say(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._say(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._failed(test, err)

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self._failed(test, err)

    def _failed(self, test: Any, err: Any) -> None:
        name = self._names.get(id(test), str(test))
        print(f"==== {name}\n{''.join(traceback.format_exception(*err))}", file=sys.stderr, flush=True)
        text = " ".join(str(err[1]).split())
        self._say(test, "failed", f"{err[0].__name__}: {text[:300]}")

    def _say(self, test: Any, outcome: str, why: str = "") -> None:
        """``test`` is another object if a class could not be set up."""
        name = self._names.get(id(test), str(test))
        line = {"test": name, "outcome": outcome, "why": why, "seconds": round(time.monotonic() - self._began_s, 1)}
        print(json.dumps(line), file=self._lines, flush=True)


def main() -> None:
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever tests print must not come between the lines
    side, *more = sys.argv[1:]
    tests = found_tests()
    if more == ["list"]:
        print(json.dumps(list(tests)), file=lines, flush=True)
        return
    if side == "drop-in":
        # Only here: stock Spark runs without any of our code.
        import_module("tools.spark_suite.adaptor").adapt()
    wanted = json.loads(sys.stdin.readline())
    names = {id(tests[name]): name for name in wanted}
    unittest.TestSuite([tests[name] for name in wanted]).run(Reporter(lines, names))


if __name__ == "__main__":
    main()
