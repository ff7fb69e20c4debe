"""The runner of all tests: its counts, the failed tests that it names, and suites that crash or hang."""

from __future__ import annotations

import contextlib
import io
import sys
import unittest
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOOLS))

import run_tests
from run_tests import Counts, Outcome, Runner, Suite

LIBTEST = """
running 3 tests
test a ... ok
test b::c ... FAILED
test d - should panic ... FAILED

successes:

---- a stdout ----
SKIP a: no root


successes:
    a

failures:

---- b::c stdout ----

thread 'b::c' panicked at x.rs:1:1:
boom

---- d stdout ----
note: test did not panic as expected

failures:
    b::c
    d

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
UNITTEST = """
test_x (tests.test_x.X.test_x) ... ERROR

======================================================================
ERROR: test_x (tests.test_x.X.test_x)
----------------------------------------------------------------------
Traceback (most recent call last):
KeyError: 1

----------------------------------------------------------------------
Ran 5 tests in 0.1s

FAILED (errors=1, skipped=2)
"""


def outcome(output: str, status: int = 1) -> Outcome:
    return Outcome(Suite("suite", ("true",)), output, status, 0.0, 0.0)


class Outputs(unittest.TestCase):
    def test_libtest(self) -> None:
        found = outcome(LIBTEST, 101)
        self.assertEqual(found.counts, Counts(passed=0, failed=2, skipped=1))
        failed = dict(run_tests.failures(found))
        self.assertEqual(list(failed), ["suite: b::c", "suite: d"])
        self.assertIn("boom", failed["suite: b::c"])
        self.assertNotIn("boom", failed["suite: d"])

    def test_unittest(self) -> None:
        found = outcome(UNITTEST)
        self.assertEqual(found.counts, Counts(passed=2, failed=1, skipped=2))
        [(name, lines)] = run_tests.failures(found)
        self.assertEqual(name, "suite: test_x (tests.test_x.X.test_x)")
        self.assertIn("KeyError: 1", lines)

    def test_a_crash_is_a_failure(self) -> None:
        passed = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
        found = outcome(f"{passed}\nSegmentation fault", 139)
        self.assertEqual(found.counts, Counts(passed=3, failed=1))
        [(name, lines)] = run_tests.failures(found)
        self.assertEqual((name, lines[-1]), ("suite: exit code 139", "Segmentation fault"))

    def test_names_of_packages(self) -> None:
        for package_id in ("path+file:///work/wire#sumac-wire@0.1.0", "path+file:///work/sumac-wire#0.1.0"):
            self.assertEqual(run_tests.package_name(package_id), "sumac-wire")


class Suites(unittest.TestCase):
    def run_suites(self, *suites: Suite) -> tuple[Counts, str]:
        runner, printed = Runner(), io.StringIO()
        with contextlib.redirect_stdout(printed):
            runner.run(suites, 2)
            return runner.summary(), printed.getvalue()

    def test_a_suite_that_hangs_is_stopped_and_named(self) -> None:
        with mock.patch.object(run_tests, "LIMIT", 1):
            counts, printed = self.run_suites(Suite("hangs", ("sleep", "60")))
        self.assertEqual(counts, Counts(failed=1))
        self.assertIn("== failed: hangs: not done after 1 s", printed)

    def test_all_outputs_are_counted_and_the_failed_repeated(self) -> None:
        good = Suite("good", ("echo", "test result: ok. 3 passed; 0 failed; 0 ignored;"))
        bad = Suite("bad", ("bash", "-c", 'printf "%s" "$1"; exit 101', "bad", LIBTEST))
        counts, printed = self.run_suites(good, bad)
        self.assertEqual(str(counts), "3 passed, 2 failed, 1 skipped")
        self.assertIn("== good: 0 s, 0 s of CPUs\n", printed)
        self.assertIn("== failed: bad: b::c\n", printed)


if __name__ == "__main__":
    unittest.main()
