"""Run every ``tests/test_*.py``: standard library only, no Hermes; a line for each module.

A module that cannot be imported and a test that is skipped count as failed. ``python3
tests/selftest.py word ...`` runs only the modules whose name contains one of the words.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said in words, where the imports below would fail
    print(f"This needs Python 3.11 or newer; this is {sys.version_info[0]}.{sys.version_info[1]}.")
    raise SystemExit(2)

import importlib
import logging
import time
import traceback
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))


class Outcome(unittest.TestResult):
    """Counts the tests that passed and keeps what was wrong with each of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self.wrong: dict[str, list[str]] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed += 1

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test.id(), "".join(traceback.format_exception(*err)))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._add(test.id(), f"{subtest}\n" + "".join(traceback.format_exception(*err)))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test.id(), f"it was skipped: {reason}")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test.id(), "it is marked as expected to fail")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._add(test.id(), "it was expected to fail")

    def _add(self, name: str, what: str) -> None:
        self.wrong.setdefault(name, []).append(what)


def main(words: Sequence[str]) -> int:
    start = time.perf_counter()
    outcome = Outcome()
    logging.getLogger("manyhands").addHandler(logging.NullHandler())  # tests look with assertLogs
    for path in sorted(TESTS.glob("test_*.py")):
        if not words or any(word in path.stem for word in words):
            before = outcome.passed
            load(path.stem, outcome).run(outcome)
            print(f"{path.stem}: {outcome.passed - before} passed", flush=True)
    for name, what in outcome.wrong.items():
        print(f"FAIL {name}", *what, sep="\n", end="\n\n")
    print(f"{time.perf_counter() - start:.1f} s")
    print(f"{outcome.passed} passed, {len(outcome.wrong)} failed")
    return 0 if outcome.passed and not outcome.wrong else 1


def load(name: str, outcome: Outcome) -> unittest.TestSuite:
    """The tests of one module; none, and a failure, when it cannot be imported or has none."""
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
    except BaseException as error:  # a module may raise SkipTest or leave by SystemExit
        outcome._add(name, "".join(traceback.format_exception(error)))
        return unittest.TestSuite()
    if not suite.countTestCases():
        outcome._add(name, "it holds no test")
    return suite


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
